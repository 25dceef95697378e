# syntax=docker/dockerfile:1
#
# docker build --target cpu      --tag farrank:cpu      .
# docker build --target cuda     --tag farrank:cuda     .
# docker build --target tensorrt --tag farrank:tensorrt .
#
# The nodes of a Ray cluster run the same image with one more extra:
#
# docker build --target cpu --build-arg MORE_EXTRAS=ray --tag farrank:cpu-ray .
#
# The packages contain the embedded model and Java: a running container downloads nothing.

FROM python:3.11-slim-bookworm AS base
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH=/opt/farrank/bin:$PATH

# The wheels of this checkout.
FROM base AS wheels
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY trec trec
COPY rankers rankers
COPY runtimes runtimes
COPY exporters exporters
COPY training training
COPY settings settings
COPY calls calls
COPY lucene lucene
COPY indexes indexes
COPY first_stage first_stage
COPY page page
COPY server server
COPY clients clients
COPY loadtest loadtest
COPY local local
COPY scale scale
COPY cli cli
RUN ["pip", "wheel", "--no-deps", "--wheel-dir", "/wheels", "./clients", "."]

# The dependencies have their own file: the heavy layers below change only when that file changes.
FROM base AS requirements
WORKDIR /src
COPY pyproject.toml ./
ARG EXTRAS="server lucene opensearch elasticsearch embedded onnx openvino"
ARG MORE_EXTRAS=""
# An extra may name other extras of this project. Those are listed above. The wheels of this project are built above.
RUN python -c "import os, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; names = (os.environ['EXTRAS'] + ' ' + os.environ['MORE_EXTRAS']).split(); extras = sum((project['optional-dependencies'][name] for name in names), []); print(*(each for each in project['dependencies'] + extras if not each.startswith('farrank')), sep='\n')" > requirements.txt

FROM base AS environment
RUN ["python", "-m", "venv", "/opt/farrank"]
COPY constraints.txt /src/
COPY --from=requirements /src/requirements.txt /src/

FROM environment AS environment-cpu
# Only torch comes from PyTorch's index, and pip looks up no other name there.
RUN pip install --no-deps --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' /src/constraints.txt)"
RUN pip install --constraint /src/constraints.txt --requirement /src/requirements.txt

FROM environment AS environment-cuda
# PyPI's torch is the CUDA build. It contains CUDA's libraries; the driver is the host's.
RUN pip install --constraint /src/constraints.txt --requirement /src/requirements.txt

FROM environment-cuda AS environment-tensorrt
# pyserini requires onnxruntime. onnxruntime-gpu writes into the same folder, so onnxruntime is removed first.
# PyPI's tensorrt-cu13-libs is a placeholder, which downloads the libraries from NVIDIA's own index.
RUN pip uninstall --yes onnxruntime && pip install --constraint /src/constraints.txt onnx 'onnxruntime-gpu[cuda,cudnn]' tensorrt-cu13-libs

FROM base AS runtime
# USER below takes the number: Kubernetes cannot tell whether a user's name stands for root.
RUN ["useradd", "--uid", "10001", "--create-home", "farrank"]
WORKDIR /home/farrank
ENV FARRANK_LISTEN__HOST=0.0.0.0 \
    FARRANK_LISTEN__PORT=50051 \
    FARRANK_LISTEN__METRICS_PORT=9090 \
    FARRANK_LISTEN__HTTP__PORT=8080 \
    HF_HUB_OFFLINE=1 \
    PYTHONUNBUFFERED=1
EXPOSE 50051 9090 8080
# The check asks the standard gRPC health service. A draining server is not healthy.
HEALTHCHECK --interval=10s --timeout=10s --start-period=120s CMD ["python", "-c", "import os, sys; from farrank import Client; sys.exit(not Client('127.0.0.1:' + os.environ['FARRANK_LISTEN__PORT']).is_healthy())"]
# Exec form: SIGTERM reaches the server, which drains for at most listen.drain_timeout_s.
ENTRYPOINT ["farrank"]
CMD ["serve"]

FROM runtime AS gpu
# Without a GPU the server ends with a one-line error, instead of running on the CPU unnoticed.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    FARRANK_DEVICE__NAME=cuda:0
# Triton compiles FlexAttention at the start, and needs a C compiler to build the code that launches its kernels.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

FROM gpu AS cuda
COPY --from=environment-cuda /opt/farrank /opt/farrank
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels pip install --no-deps --no-index /wheels/*.whl
USER 10001

FROM gpu AS tensorrt
COPY --from=environment-tensorrt /opt/farrank /opt/farrank
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels pip install --no-deps --no-index /wheels/*.whl
USER 10001

FROM runtime AS cpu
COPY --from=environment-cpu /opt/farrank /opt/farrank
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels pip install --no-deps --no-index /wheels/*.whl
USER 10001
