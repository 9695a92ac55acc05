# tf_multitier for CPU. docker build -t tf_multitier . && docker run -it tf_multitier python

FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates g++ python3 python3-venv
COPY . /sources
WORKDIR /sources
RUN python3 configure.py wheel --python=3.11 --tensorflow=2.21

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /sources/dist/*.whl /wheels/
RUN python3 -m venv /opt/tf_multitier \
 && /opt/tf_multitier/bin/pip install --no-cache-dir "$(echo /wheels/*.whl)[tensorflow-cpu,serving,parquet]"
ENV PATH=/opt/tf_multitier/bin:$PATH
