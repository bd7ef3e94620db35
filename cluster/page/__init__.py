"""The web pages of a proposer and a safekeeper: what they know, judged as `sk status` judges it.

`proposer_page.py` and `safekeeper_page.py` are the two pages, `timeline_page.py` what both show of
a timeline. How it looks is in `telemetry/page/`. Law: there is one judge (`cluster/verdict.py`);
where a service knows too little to be judged, its page says UNKNOWN and why.
"""
