# The `sk` command as an image: safekeepers, proposers and the tools. See docs/containers.md.
#
#   BASE_IMAGE   an image of Debian with Python 3.11 or newer and its venv
#   PIP_OPTIONS  options of pip: an --index-url; or "--no-index --find-links /wheels", with the
#                downloaded packages in a folder wheels/ beside this file
#   VERSION      the version in the label
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG PIP_OPTIONS=""
# The dependencies first: they rarely change, and take most of the time
COPY pyproject.toml wheels* /wheels/
RUN python3 -m venv /opt/sk \
    && python3 -c 'import tomllib; print(*tomllib.load(open(0, "rb"))["project"]["dependencies"], sep="\n")' \
        </wheels/pyproject.toml >/wheels/requirements.txt \
    && /opt/sk/bin/pip install --no-cache-dir ${PIP_OPTIONS} -r /wheels/requirements.txt
COPY . /src
# Remove pip, which the image does not need
RUN /opt/sk/bin/pip install --no-cache-dir --no-deps ${PIP_OPTIONS} /src \
    && /opt/sk/bin/pip uninstall --yes setuptools pip

FROM ${BASE_IMAGE}
RUN groupadd --gid 10001 sk \
    && useradd --uid 10001 --gid sk --no-create-home --home-dir /var/lib/sk sk \
    && install -d -o sk -g sk -m 0700 /var/lib/sk
COPY --from=build /opt/sk /opt/sk
COPY container/healthz.py /opt/sk/healthz.py

# Listen on all addresses, because other containers cannot reach a port on the loopback. Without TLS
# and users a safekeeper still refuses to start, unless --insecure is given.
ENV PATH=/opt/sk/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SK_SAFEKEEPER_RUN_DATA_DIR=/var/lib/sk \
    SK_SAFEKEEPER_RUN_LISTEN=0.0.0.0:5454 \
    SK_SAFEKEEPER_RUN_HTTP=0.0.0.0:7676 \
    SK_ATTACH_HTTP=0.0.0.0:7677 \
    SK_PROMOTE_HTTP=0.0.0.0:7677
# Given as a number, so that an orchestrator can verify that it is not root
USER 10001:10001
# A volume, because the WAL must outlive the container
VOLUME /var/lib/sk
EXPOSE 5454 7676 7677
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-I", "/opt/sk/healthz.py"]
ENTRYPOINT ["sk"]
CMD ["--help"]
ARG VERSION=unreleased
LABEL org.opencontainers.image.title="quorum-wal" \
      org.opencontainers.image.description="Quorum-durable WAL for an unmodified Postgres" \
      org.opencontainers.image.version="${VERSION}"
