# Every target sets up its own requirements: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# This environment uses the packages of the first one, except those that differ with transformers 4.57
# (docs/decisions/0031).
OLDER := .venv-transformers-4
OLDER_READY := $(OLDER)/.ready
INDEX := .cache/pydoc-index
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some images set PYTHONDONTWRITEBYTECODE. Each worker, actor and child process would then compile torch again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo train-demo test test-most test-charts test-transformers-4 client-tests ray-tests fuzz chaos soak lint audit check hooks format serve bench bench-gpu reproduce experiment docs wheels clean
.DELETE_ON_ERROR:

# --no-compile: Python compiles the modules that it imports; pip would spend 45 s on compiling all of them. The pinned
# packages come first, from two processes, the largest (torch) among the first, and without a search for versions that
# fit, which takes pip half a minute. The last call adds the project and the packages that only some builds of torch need.
BUILD_PINS := ^(\#|cuda|nvidia|onnxruntime-gpu|tensorrt|triton|grpcio-tools)
$(READY): pyproject.toml clients/pyproject.toml clients/hatch_build.py constraints.txt proto/farrank/v1/rerank.proto proto/farrank/v1/admin.proto
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	grep -vE '$(BUILD_PINS)' constraints.txt | sort --reverse | \
		xargs -n 70 -P 2 $(BIN)/pip install --quiet --no-compile --no-deps
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable clients --editable '.[all,dev]'
	touch $@

# The environment is an order-only prerequisite: a newer environment does not make the corpus out of date.
$(INDEX): | $(READY)
	$(BIN)/farrank index --pydoc --tokens embedded --encode embedded:maxsim --export auto --out $@

demo: $(READY) $(INDEX)  ## index the embedded corpus, serve it with the evidence page, rerank real questions, print figures
	$(BIN)/python -m farrank_demo --index $(INDEX)

train-demo: $(READY) $(INDEX)  ## train two rankers on the embedded corpus, serve the better one, print figures
	$(BIN)/python -m farrank_demo.train_demo --index $(INDEX) --out .cache/train-demo

serve: $(READY) $(INDEX)  ## keep a server up with the embedded ranker and index, and the evidence page
	$(BIN)/farrank serve --ranker maxsim=embedded:maxsim --export auto --index pydoc=$(INDEX) --http-port 8080 \
		--judgements pydoc=demo/farrank_demo/questions.tsv,demo/farrank_demo/qrels.txt

NAMED := $(findstring tests/,$(PYTEST_ARGS))

# The three parts are independent: `make check --jobs=3` runs them and lint in parallel, as CI does.
test: test-most $(if $(NAMED),,test-charts ray-tests)  ## the whole test suite; if PYTEST_ARGS names tests/…, only those

# tests/conftest.py sets the number of workers; each worker computes on one thread. The tests run in the order of the
# folders, in which the slowest files are not last.
test-most: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --no-loadscope-reorder $(if $(NAMED),,$(APART:%=--ignore=%)) $(PYTEST_ARGS)

# Helm's engine is a Go library. Processes that had run other servers before have crashed with it, so these tests have
# their own process.
HELM := tests/deploy
test-charts: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(HELM) $(PYTEST_ARGS)

# Ray Serve's gRPC proxy listens on every interface, so these tests run in their own network namespace, which has only
# loopback. Where namespaces are not allowed, the tests that need a cluster are skipped; FARRANK_RAY=1 runs them anyway.
RAY := tests/scale
APART := $(HELM) $(RAY)
ray-tests: $(READY)  ## the tests that use a Ray cluster of two nodes on this machine
	OMP_NUM_THREADS=1 $(BIN)/python -m farrank_bench.scaling.loopback -m pytest $(RAY) $(PYTEST_ARGS)

# A .pth file, which Python reads at its start, puts the first environment's packages last on this one's path. It is
# written after pip has run, because pip would otherwise replace those packages. Building the environment anew takes
# seconds.
$(OLDER_READY): $(READY) constraints-transformers-4.txt
	rm -rf $(OLDER)
	$(BIN)/python -m venv --without-pip $(OLDER)
	grep --invert-match --line-regexp --fixed-strings --file=constraints.txt constraints-transformers-4.txt >$(OLDER)/pins.txt
	$(BIN)/pip --python $(OLDER)/bin/python install --quiet --no-deps --requirement $(OLDER)/pins.txt
	packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
		echo "import site; site.addsitedir('$$packages')" >"$$(echo $(OLDER)/lib/python*/site-packages)/first.pth"
	touch $@

# These tests read or run transformers' own code: its models, tokenizers, configurations, Trainer, and their traces.
# They cover all families, yes-no among them, ModernBERT padded, packed, exported and served, and the models of
# docs/reference/models.md: cross-encoders, classifiers with chat templates, cross-encoders of several modules, language models
# that answer, Qwen3-Embedding, EmbeddingGemma, static embeddings and LoRA adapters. Of chat templates and several
# modules, which sentence-transformers 5.1 lacks, it compares the scores with those of transformers 5.
# The rest behaves the same with either release, and `make test` covers it: kernels, the graphs of families' heads,
# writing a layout without optimum, quantising, measuring, keeping and choosing an export, and differences of weights.
# tests/exporters/test_plain_graph.py also traces most backbones marked slow: all but MOSAIC and BigBird.
OLDER_TESTS := tests/rankers tests/runtimes/test_packed_runtime.py tests/runtimes/test_published_runtime.py \
	tests/runtimes/test_torch_runtime.py $(addprefix tests/exporters/test_,optimum_exporter.py plain_graph.py embedding_models.py) \
	$(addprefix tests/exporters/test_optimum_layout.py::test_,a_published_model_gets_a_folder_with_its_files_and_no_weights \
		int8_and_fp16_are_served_where_they_keep_their_bound others_libraries_load_a_cross_encoder_with_the_same_scores \
		sentence_transformers_loads_a_biencoder_with_the_same_vectors) \
	$(addprefix tests/first_stage/test_learned_kinds.py::test_,a_masked_language_model_weighs_the_query \
		a_query_that_the_model_cannot_hold_is_refused stored_vectors_are_found_with_the_rankers_own_scores) \
	$(addprefix tests/e2e/test_,embedded_rankers.py modernbert.py widely_used.py yes_no.py) \
	tests/training/test_ranking_trainer.py tests/bench/test_exporters.py tests/docs/test_constraints.py \
	$(addprefix --ignore=tests/rankers/,exports files/test_difference.py test_papers.py test_zoo.py) \
	$(addprefix --ignore=tests/rankers/packed/test_,$(addsuffix .py,attention_blocks attention_choice flash_attn_kernel flex_attention kernels_on_a_gpu torch_varlen_kernel)) \
	$(addprefix --ignore=tests/rankers/backbones/packed/test_,$(addsuffix .py,block_by_block compiled_patterns compiling precision)) \
	$(addprefix --deselect=tests/rankers/test_stretches.py::test_,no_text_is_tokenized_in_long_pieces any_text_has_the_tokens_of_the_whole) \
	$(addprefix --deselect=tests/exporters/test_plain_graph.py::test_,weights_in_a_file_of_their_own_stay_there rankers_that_are_not_plain_are_refused_with_the_reason) \
	--deselect=tests/rankers/test_traceable.py::test_every_family_scores_alike_in_its_graphs \
	--deselect=tests/e2e/test_embedded_rankers.py::test_one_is_exported

# Two workers, because CI runs this part in parallel with the others.
test-transformers-4: $(OLDER_READY)  ## a part of the test suite with transformers 4.57 and optimum
	FARRANK_OTHER_PYTHON=$(abspath $(BIN)/python) OMP_NUM_THREADS=1 \
		$(OLDER)/bin/python -m pytest --numprocesses=2 --no-loadscope-reorder -m "not slow" $(OLDER_TESTS) $(PYTEST_ARGS)

client-tests: $(READY)  ## the tests in which third-party HTTP clients, each in its own environment, call a server
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/http_clients $(PYTEST_ARGS)

fuzz: $(READY)  ## 100,000 generated calls, and raw HTTP/2 frames, against a real server; writes .cache/raw-http2.md
	mkdir -p .cache
	FARRANK_FUZZ_CASES=$(or $(FUZZ_CASES),100000) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz/test_fuzz.py -s $(PYTEST_ARGS)
	FARRANK_RAW_CASES=$(or $(RAW_CASES),2000) FARRANK_RAW_SHARE=1 FARRANK_RAW_TIMES=5000 \
		FARRANK_RAW_REPORT=.cache/raw-http2.md OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz/test_raw_http2.py $(PYTEST_ARGS)

# Ten minutes of faults come first, then the kills, which take longer: a JVM needs seconds to start.
chaos: $(READY)  ## parts of a real server fail under load, for ten minutes and a hundred kills; writes .cache/chaos.md
	mkdir -p .cache
	FARRANK_CHAOS_SECONDS=$(or $(CHAOS_SECONDS),600) FARRANK_CHAOS_KILLS=$(or $(CHAOS_KILLS),100) \
		FARRANK_CHAOS_REPORT=$(or $(CHAOS_REPORT),.cache/chaos) OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest tests/chaos/test_chaos.py -s $(PYTEST_ARGS)

soak: $(READY)  ## an hour of load, in which memory, threads and open files must not grow; writes .cache/soak.md
	mkdir -p .cache
	FARRANK_SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) FARRANK_SOAK_REPORT=$(or $(SOAK_REPORT),.cache/soak) OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest tests/chaos/test_soak.py -s $(PYTEST_ARGS)

lint: $(READY)  ## format, lint, types, import rules, proto lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint

audit: $(READY)  ## check the pinned packages against an index of known vulnerabilities, where one can be reached
	$(BIN)/python audit_dependencies.py

check: lint audit test  ## everything: lint and the whole test suite

hooks: $(READY)  ## run lint's checks at every commit
	$(BIN)/pre-commit install

format: $(READY)  ## rewrite the sources in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) $(INDEX)  ## measure the server, its exports against peers, and their fidelity; see docs/benchmarks/
	$(BIN)/python -m farrank_bench --index $(INDEX) $(BENCH_ARGS)

bench-gpu: $(READY)  ## measure packed rankers on a CUDA device; see docs/benchmarks/gpu.md
	$(BIN)/python -m farrank_bench.gpu $(BENCH_ARGS)

# The folder of public collections is that of the tests: squad/, trecdl19/ and nfcorpus/. The same command resumes.
reproduce: $(READY)  ## quality, latency and size of rankers on real collections; writes .cache/reproduce/reproduce.md
	$(BIN)/python -m farrank_bench.reproduce --out .cache/reproduce --data $(or $(FARRANK_DATA),../shared/data) $(REPRODUCE_ARGS)

experiment: $(READY)  ## measure the papers' findings on SQuAD, for hours; the same command resumes an interrupted run
	$(BIN)/python -m farrank_experiments $(EXPERIMENT_ARGS)

# A broken link ends the build. The folder is a part of the package of the page, so a server shows it at /docs.
DOCS := page/farrank_page/docs
docs: $(READY)  ## build the documentation, which a server then shows at /docs
	rm -rf $(DOCS)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs 2 --doctree-dir .cache/docs docs $(DOCS)

wheels: docs  ## build the packages for PyPI, farrank-client and farrank, into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist clients
	$(BIN)/python -m build --outdir dist .

clean:  ## remove the environments, the caches and the built packages
	rm -rf $(VENV) $(OLDER) .cache dist $(DOCS)
