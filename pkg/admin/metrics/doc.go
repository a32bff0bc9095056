// SPDX-License-Identifier: Apache-2.0

// Package metrics turns the Stats of the other packages into Prometheus series.
//
// It is the only package that uses metric names. A [Collector] reads one [Sample] for each scrape and writes
// it family by family. docs/metrics.md is generated from the same calls.
//
// Every label is a closed set or comes from the configuration. No client's bytes become part of a series, so
// no client can increase their number.
package metrics
