// SPDX-License-Identifier: Apache-2.0

// Package config reads a YAML file into a typed, validated [Config].
//
// [Parse] reports every problem of a file at once, each with its line and column and the path of its
// key: unknown keys, wrong types, values out of range, values that contradict
// each other. A key that is absent or null keeps the value of [Default], so an
// empty file is a complete configuration. What the defaults are, and what
// contradicts them, depends on the [Role] of the program. What Parse returns needs no more
// checks, and [Marshal] writes it so that Parse reads the same again.
//
// The structs in config.go are the only list of keys: their tags say how a value is written and what its bounds are, and
// their comments what it means. The decoder and the writer walk them by reflection; reference.yaml,
// docs/configuration.md and docs/configuration.schema.json are made of them. A new key is a field with its tags, its
// comment and its default; a new form of values is an entry of formats. The rules between keys are in parse.go.
package config
