# mockfleet: all programs in one image.
#
# Untested: there was no container engine where this was written.
#
#   docker build -t mockfleet .
#   docker run --rm -p 50051-50058:50051-50058 mockfleet mocker --host 0.0.0.0 --num-workers 8 --speedup-ratio 8
#
# Workers of one container are not found from another one: name them with `router --workers http://HOST:PORT …`.

FROM rust:1.95-slim-trixie AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs README.md ./
COPY proto proto
COPY assets assets
COPY profiles profiles
COPY bin bin
COPY src src
# The manifest names the targets in these two, although they are not built here.
COPY tests tests
COPY benches benches
RUN cargo build --release --locked --bins

FROM debian:trixie-slim
COPY --from=build /src/target/release/mockfleet /usr/local/bin/
RUN for program in mocker router loadgen trace; do \
        printf '#!/bin/sh\nexec mockfleet %s "$@"\n' "$program" > "/usr/local/bin/$program" \
        && chmod +x "/usr/local/bin/$program"; \
    done \
    && useradd --create-home mockfleet
USER mockfleet
# `loadgen` writes results/ here: mount a folder to keep them.
WORKDIR /home/mockfleet
ENTRYPOINT ["mockfleet"]
CMD ["--help"]
