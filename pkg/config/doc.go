// SPDX-License-Identifier: Apache-2.0

// Package config reads a YAML file into a typed, validated [Config].
//
// [Parse] reports every problem of a file at once, each with its line and column and the path of its
// key: unknown keys, wrong types, values out of range, values that contradict
// each other. A key that is absent or null keeps the value of [Default], which depends on the [Role] of the program. So an
// empty file is a complete configuration. The result needs no more checks, and [Marshal] writes it so that Parse reads the
// same again.
//
// The structs in config.go are the only list of keys: their tags have the form and the bounds of a value, and their comments
// the meaning. The decoder and the writer walk them by reflection; reference.yaml, docs/configuration.md and
// docs/configuration.schema.json are generated from them. A new key is a field with tags, comment and default; a new form of
// values is an entry of formats. parse.go has the rules between keys.
package config
