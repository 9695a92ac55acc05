"""Bazel's own proto rules under the names that rules_proto gives them."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
