// SPDX-License-Identifier: Apache-2.0

// Package config turns a YAML file into a typed, validated plan that can be watched.
//
// [Parse] reports every problem of a file at once, each with the path of its
// key: unknown keys, wrong types, values out of range, values that contradict
// each other. A key that is absent or null keeps the value of [Default], so an
// empty file is a complete configuration. What the defaults are, and what
// contradicts them, depends on the [Role] of the program. What Parse returns needs no more
// checks, and [Marshal] writes it so that Parse reads the same again.
//
// Parsing has steps: the text becomes one JSON document, the document
// is walked along tables of the known keys (one per section, see fields.go),
// each key's reader checks its own value, and the rules between keys come last.
package config
