"""The core of an attachment, step by step: cases that the simulation does not name."""

from __future__ import annotations

import pytest

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.attachment import (
    AttachDecision,
    Attachment,
    Phase,
    decide_attach,
)
from quorum_wal.pageserver.attachments.attachment_events import (
    Action,
    Alarm,
    AlarmKind,
    Begun,
    Changed,
    Claimed,
    CollectDue,
    CompactDue,
    Condemn,
    CreateClaim,
    Failed,
    FreshIndex,
    FreshIndexWanted,
    Hinted,
    IndexDamaged,
    IndexLoaded,
    IndexUploaded,
    IndicesListed,
    LayersMerged,
    LayersSurveyed,
    ListIndices,
    LoadIndex,
    LocalGrown,
    MergeFailed,
    MergeLayers,
    Mode,
    ModeSet,
    NewFrame,
    NewLayer,
    PartMerged,
    Publish,
    Refuse,
    Stored,
    SurveyLayers,
    Upload,
    Uploaded,
    UploadIndex,
    Validated,
    ValidationBegun,
)
from quorum_wal.pageserver.objects.attachment_id import Verdict
from quorum_wal.pageserver.objects.page_index import Cut, LayerRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName, ListName

OLD, OWN, NEW = Suffix.pack(1, 1, 1), Suffix.pack(2, 1, 1), Suffix.pack(3, 2, 1)
LOADED = IndexName(OLD, 9)
LAYER = LayerRef(100, 0, OLD, 2, 5)
INDEX = PageIndex(0, (Cut(50, 80, 100, 1, 10),), (LAYER,))
HINT = ListName(Suffix.pack(0, 1, 1), 4)


def claimed(mode: Mode = Mode.SINGLE) -> Attachment:
    core = Attachment(OWN, "mine", mode, history_seconds=5, local_bytes_max=1000)
    assert core.step(Begun()) == [CreateClaim(OWN, "mine")]
    assert core.step(Claimed("mine")) == [ListIndices()]
    return core


def active(mode: Mode = Mode.SINGLE) -> Attachment:
    """Has written its own index, with the contents of the loaded one."""
    core = claimed(mode)
    assert core.step(IndicesListed((LOADED, IndexName(OLD, 8)), False)) == [LoadIndex(LOADED)]
    assert core.step(IndexLoaded(LOADED, INDEX)) == [UploadIndex(IndexName(OWN, 1), INDEX)]
    core.step(IndexUploaded(IndexName(OWN, 1)))
    return core


def ingest(core: Attachment, end_lsn: int, number: int = 1) -> list[Action]:
    """Handles one epoch until its index is being uploaded."""
    cut = Cut(end_lsn - 50, end_lsn - 20, end_lsn, 1, end_lsn // 10)
    change = Changed(number, cut, (NewLayer(end_lsn, 0, 5),), (NewFrame(end_lsn, 3),))
    actions = list[Action]()
    for upload in core.step(change):
        assert isinstance(upload, Upload)
        actions = core.step(Uploaded(upload.ref.name))
    return actions


def written(actions: list[Action]) -> UploadIndex:
    (index,) = (action for action in actions if isinstance(action, UploadIndex))
    return index


def test_a_claim_of_another_incarnation() -> None:
    core = Attachment(OWN, "mine", Mode.SINGLE, 5, 1000)
    core.step(Begun())
    (refusal,) = core.step(Claimed("another"))
    assert isinstance(refusal, Refuse)
    assert "advance" in refusal.hint
    assert core.phase is Phase.REFUSED
    assert core.step(Claimed("mine")) == []


def test_an_own_index_that_it_did_not_write() -> None:
    (refusal,) = claimed().step(IndicesListed((IndexName(OWN, 3),), False))
    assert isinstance(refusal, Refuse)


def test_a_tombstone() -> None:
    (refusal,) = claimed().step(IndicesListed((LOADED,), True))
    assert isinstance(refusal, Refuse)
    assert "deleted" in refusal.message


def test_a_greater_index() -> None:
    """It loads the greatest index below its suffix, and writes nothing, whatever the service
    says."""
    core = claimed()
    alarm, load = core.step(IndicesListed((LOADED, IndexName(NEW, 1)), False))
    assert isinstance(alarm, Alarm)
    assert alarm.kind is AlarmKind.RIVALLED
    assert load == LoadIndex(LOADED)
    assert core.step(IndexLoaded(LOADED, INDEX)) == []
    assert (core.phase, core.mode) == (Phase.ACTIVE, Mode.STALE)
    assert core.step(ModeSet(Mode.SINGLE)) == []
    assert core.step(ValidationBegun(1)) == core.step(Validated(1, Verdict.VALID)) == []
    assert core.mode is Mode.STALE


def test_a_missing_index_is_listed_again() -> None:
    core = claimed()
    core.step(IndicesListed((LOADED,), False))
    assert core.step(IndexLoaded(LOADED, None)) == [ListIndices()]


def test_a_failed_request_is_repeated() -> None:
    core = claimed()
    assert core.step(Failed(ListIndices())) == [ListIndices()]
    core.step(IndicesListed((LOADED,), False))
    assert core.step(Failed(LoadIndex(LOADED))) == [LoadIndex(LOADED)]
    assert core.step(Failed(ListIndices())) == []  # a request of an earlier phase


def test_a_damaged_index_is_not_skipped() -> None:
    core = claimed()
    core.step(IndicesListed((IndexName(OLD, 8), LOADED), False))
    (alarm,) = core.step(IndexDamaged(LOADED, "cut short"))
    assert alarm == Alarm(AlarmKind.DAMAGED, "cut short")
    assert core.phase is Phase.BROKEN


def test_a_first_timeline() -> None:
    core = claimed()
    assert core.step(IndicesListed((), False)) == [UploadIndex(IndexName(OWN, 1), PageIndex())]


def test_from_ingest_to_feedback() -> None:
    """Feedback is the position when the validation began, not when it ends."""
    core = active()
    assert core.projected_lsn == 50
    upload = written(ingest(core, 200))
    assert core.step(ValidationBegun(1)) == []
    assert core.step(IndexUploaded(upload.name)) == [Stored(1)]
    assert core.projected_lsn == 150
    assert core.step(Validated(1, Verdict.VALID)) == [Publish(50)]
    assert core.step(ValidationBegun(2)) == []
    assert core.step(Validated(1, Verdict.VALID)) == []
    assert core.step(Validated(2, Verdict.VALID)) == [Publish(150)]


def with_a_horizon(mode: Mode = Mode.SINGLE) -> Attachment:
    """Cuts at 200 and 300; the horizon is at 200."""
    core = active(mode)
    core.step(IndexUploaded(written(ingest(core, 200)).name))
    core.step(IndexUploaded(written(ingest(core, 300, 2)).name))
    upload = written(core.step(CollectDue(now_unix_s=25)))
    assert upload.index.horizon_lsn == 200
    assert core.step(IndexUploaded(upload.name)) == []  # the loaded index had no frame
    return core


def merging(core: Attachment) -> tuple[LayerRef, ...]:
    """The layers whose merge it has begun."""
    (survey,) = core.step(CompactDue(7))
    assert isinstance(survey, SurveyLayers)
    assert [layer.end_lsn for layer in survey.layers] == [100, 200]
    order = MergeLayers(7, survey.cut, survey.layers)
    assert core.step(LayersSurveyed(7, live_pages=4, all_pages=10)) == [order]
    return survey.layers


def part_of(actions: list[Action], part: int) -> LayerRef:
    (upload,) = actions
    assert isinstance(upload, Upload)
    assert (upload.change, upload.position, upload.ref.end_lsn) == (7, part, 200)
    assert isinstance(upload.ref, LayerRef)
    assert upload.ref.part == part
    return upload.ref


def test_one_layer_replaces_the_layers_below_the_horizon() -> None:
    """The old layers are condemned when the index that names the new one is in the store."""
    core = with_a_horizon()
    old = merging(core)
    parts = [part_of(core.step(PartMerged(7, 8)), number) for number in range(2)]
    assert core.step(Uploaded(parts[0].name)) == core.step(LayersMerged(7)) == []
    upload = written(core.step(Uploaded(parts[1].name)))
    assert upload.index.layers == (*parts, core.index.layers[2])
    names = tuple(ref.name for ref in old)
    assert all(core.is_needed(name) for name in names)
    assert core.step(IndexUploaded(upload.name)) == [Stored(7), Condemn(names)]
    assert core.step(CompactDue(8)) == []  # only one layer is left


def test_cuts_do_not_wait_for_a_merge() -> None:
    core = with_a_horizon()
    merging(core)
    first = part_of(core.step(PartMerged(7, 8)), 0)
    assert core.step(CompactDue(8)) == []  # one merge at a time
    upload = written(ingest(core, 400, 9))
    assert [layer.end_lsn for layer in upload.index.layers] == [100, 200, 300, 400]
    core.step(IndexUploaded(upload.name))
    assert core.step(LayersMerged(7)) == []
    upload = written(core.step(Uploaded(first.name)))
    assert [layer.end_lsn for layer in upload.index.layers] == [200, 300, 400]


def test_too_few_dead_pages_are_not_merged() -> None:
    core = with_a_horizon()
    assert [type(action) for action in core.step(CompactDue(7))] == [SurveyLayers]
    assert core.step(LayersSurveyed(7, live_pages=5, all_pages=10)) == []
    assert core.step(CompactDue(8)) == []
    upload = written(core.step(CollectDue(now_unix_s=35)))
    core.step(IndexUploaded(upload.name))
    (survey,) = core.step(CompactDue(9))
    assert isinstance(survey, SurveyLayers)
    assert [layer.end_lsn for layer in survey.layers] == [100, 200, 300]


def test_the_parts_of_a_failed_merge_are_condemned() -> None:
    core = with_a_horizon()
    merging(core)
    part = part_of(core.step(PartMerged(7, 8)), 0)
    assert core.is_needed(part.name)
    assert core.step(MergeFailed(7)) == [Condemn((part.name,))]
    again = Failed(Upload(7, 0, part))
    assert core.step(again) == core.step(LayersMerged(7)) == core.step(Uploaded(part.name)) == []
    assert [type(action) for action in core.step(CompactDue(8))] == [SurveyLayers]


def test_only_single_attachments_merge() -> None:
    assert active().step(CompactDue(7)) == []  # no horizon yet
    assert with_a_horizon(Mode.MULTI).step(CompactDue(7)) == []
    core = with_a_horizon()
    merging(core)
    core.step(Validated(0, Verdict.OUTDATED))
    assert core.compaction.merge is None
    assert core.step(PartMerged(7, 8)) == core.step(LayersMerged(7)) == []


def test_in_multi_nothing_is_condemned() -> None:
    core = active(Mode.MULTI)
    assert core.step(Hinted(HINT, (LOADED, LAYER.name))) == []
    assert core.step(ModeSet(Mode.SINGLE)) == [Condemn((LOADED,), HINT)]


def test_an_emergency_ends() -> None:
    core = active(Mode.EMERGENCY)
    assert not core.is_validated
    assert core.step(Hinted(HINT, (LOADED,))) == []
    assert core.step(ValidationBegun(1)) == core.step(Validated(1, Verdict.VALID)) == []
    assert core.step(ModeSet(Mode.SINGLE)) == [Condemn((LOADED,), HINT)]
    assert core.is_validated


def test_a_tombstone_is_found_by_a_listing_or_a_validation() -> None:
    early, late = claimed(), active()
    (refused,) = early.step(IndicesListed((), True))
    assert isinstance(refused, Refuse)
    (alarm,) = late.step(Validated(1, Verdict.DELETED))
    assert isinstance(alarm, Alarm)
    assert alarm.kind is AlarmKind.DELETED
    assert (early.is_deleted, late.is_deleted, late.mode) == (True, True, Mode.STALE)
    assert not active().is_deleted


@pytest.mark.parametrize("verdict", [Verdict.OUTDATED, Verdict.RIVALLED, Verdict.DELETED])
def test_a_stale_attachment_only_serves(verdict: Verdict) -> None:
    core = active()
    upload = written(ingest(core, 200))
    (alarm,) = core.step(Validated(0, verdict))
    assert isinstance(alarm, Alarm)
    assert core.step(Failed(upload)) == core.step(IndexUploaded(upload.name)) == []
    assert ingest(core, 300, 2) == core.step(FreshIndexWanted()) == []
    assert core.step(Hinted(HINT, (LOADED,))) == [Condemn((), HINT)]
    assert core.step(LocalGrown(1000)) == []
    assert core.phase is Phase.ACTIVE
    (alarm,) = core.step(LocalGrown(1001))
    assert isinstance(alarm, Alarm)
    assert (alarm.kind, core.phase) == (AlarmKind.LOCAL_FULL, Phase.BROKEN)


def test_a_new_index_for_a_scrub() -> None:
    core = active()
    upload = written(core.step(FreshIndexWanted()))
    assert upload == UploadIndex(IndexName(OWN, 2), INDEX)
    assert core.step(IndexUploaded(upload.name)) == [FreshIndex(upload.name)]
    assert core.step(IndexUploaded(upload.name)) == []


def test_a_generation_never_decreases_at_a_node() -> None:
    assert decide_attach(None, OWN) is AttachDecision.BEGIN
    assert decide_attach(OLD, OWN) is AttachDecision.BEGIN
    assert decide_attach(OWN, OWN) is AttachDecision.KEEP
    assert decide_attach(NEW, OWN) is AttachDecision.REFUSE
