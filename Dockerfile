# Targets: `worker` runs a service, `demo` sends it traffic, `spark` runs the pipelines.
# What is installed is what the lock files name, by hash; the code comes last, so that editing it reuses every layer below.

FROM python:3.11-slim AS base
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1
WORKDIR /app

FROM base AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv --without-pip /opt/venv
COPY requirements/worker.lock requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --require-hashes --no-deps -r requirements/worker.lock

FROM base AS worker
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/onefold onefold \
    && install --directory --owner=onefold --group=onefold /var/lib/onefold/stores
COPY --from=packages /opt/venv /opt/venv
COPY deploy/entrypoint deploy/ready /usr/local/bin/
COPY shared shared
COPY services services
RUN python -m compileall -q shared services
ENV PYTHONDONTWRITEBYTECODE=1 ONEFOLD_HTTP_HOST=0.0.0.0 ONEFOLD_DATA_DIR=/var/lib/onefold/stores
USER onefold
ENTRYPOINT ["entrypoint"]

FROM worker AS demo
COPY demo demo
ENTRYPOINT ["python", "-m", "demo.traffic"]
