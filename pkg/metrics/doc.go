// SPDX-License-Identifier: Apache-2.0

// Package metrics turns the Stats of the other packages into Prometheus series.
//
// It is the only package that names one. The table of names.go says what each
// family is called, what it means, which labels it has, and where its values come
// from; docs/metrics.md is made from it.
//
// Every label is a closed set or comes from the configuration. No client's bytes
// become a part of a series, so nobody can make their number grow.
package metrics
