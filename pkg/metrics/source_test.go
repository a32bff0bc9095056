// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/handover"
)

// probes adds what the probes of distinct become: one that is well, and one of which nothing is known.
func probes(want map[string]float64) {
	maps.Copy(want, map[string]float64{
		`probe_up{probe="cluster"}`: 1, `panics_total{where="probe"}`: 8623,
	})
	for i, reason := range []string{"timeout", "unreachable", "malformed", "servfail", "nxdomain", "nodata", "other_rcode"} {
		want[`probe_failures_total{probe="cluster",reason="`+reason+`"}`] = float64(8601 + i)
		want[`probe_failures_total{probe="outside",reason="`+reason+`"}`] = 0
	}
}

// sources adds what becomes of the source and the hand-over of distinct.
func sources(want map[string]float64) {
	maps.Copy(want, map[string]float64{
		`config_source_info{kind="configmap",kube_dns="true"}`: 1,
		"config_source_reachable":                              1,
		"config_last_good_in_use":                              1,
		"config_source_requests_total":                         7100,
		`config_last_good_saves_total{result="success"}`:       7101,
		`config_last_good_saves_total{result="failure"}`:       7102,
		`config_events_total{result="written"}`:                7103,
		`config_events_total{result="failed"}`:                 7104,
		`config_events_total{result="dropped"}`:                7105,
		`panics_total{where="source"}`:                         7106,
		`panics_total{where="config"}`:                         7004,
		`panics_total{where="static"}`:                         7304,
		`panics_total{where="snapshot"}`:                       2108,
		`panics_total{where="handover"}`:                       7206,
		"static_names":                                         7300,
		"static_addresses":                                     7301,
		"static_templates":                                     7302,
		"static_template_failures_total":                       7303,
		`static_file_names{file="/etc/hosts"}`:                 7310,
		`static_file_skipped_lines{file="/etc/hosts"}`:         7311,
		`static_file_reads_total{file="/etc/hosts"}`:           7312,
		`static_file_readable{file="/etc/hosts"}`:              1,
		`static_file_names{file="/etc/more"}`:                  7320,
		`static_file_skipped_lines{file="/etc/more"}`:          7321,
		`static_file_reads_total{file="/etc/more"}`:            7322,
		`static_file_readable{file="/etc/more"}`:               0,
		"handover_listening":                                   1,
		`handover_taken{outcome="none"}`:                       0,
		`handover_taken{outcome="taken"}`:                      1,
		`handover_taken{outcome="orphaned"}`:                   0,
		`handover_taken{outcome="refused"}`:                    0,
		"handover_sockets":                                     7200,
		"handover_wait_seconds":                                7201e-9,
		"handover_given":                                       1,
		"handover_requests_total":                              7202,
		`handover_failures_total{reason="busy"}`:               7203,
		`handover_failures_total{reason="mismatch"}`:           7204,
		`handover_failures_total{reason="abandoned"}`:          7205,
	})
}

// TestUnconfiguredSource has no series, and a hand-over that has not begun an outcome.
func TestUnconfiguredSource(t *testing.T) {
	t.Parallel()
	sample := distinct()
	sample.Handover = nil
	sample.Static = nil
	for name := range series(gather(t, sample)) {
		for _, of := range []string{"handover_", "static_"} {
			if strings.HasPrefix(name, of) {
				t.Errorf("%s is there", name)
			}
		}
	}
	sample.Handover = new(handover.Stats)
	same(t, "before it", 1.0, series(gather(t, sample))[`handover_taken{outcome="none"}`])
}
