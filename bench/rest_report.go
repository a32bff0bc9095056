// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
)

//go:embed rest.md.tmpl
var restFrame string

// probeGoal is the CPU time of a probe in ms.
const probeGoal = 1.0

// A restReport is what one run of the section rest found.
type restReport struct {
	Machine machine
	Seconds int // of each load
	Samples []restSample
	Probes  []probeCost
}

func (rep *restReport) render() (string, error) {
	frame, err := template.New("rest.md").Parse(restFrame)
	if err != nil {
		return "", fmt.Errorf("reading the frame: %w", err)
	}
	var out strings.Builder
	if err := frame.Execute(&out, map[string]any{"Report": rep, "Budgets": budgetTable(rep.judge()), "Tables": rep.tables()}); err != nil {
		return "", fmt.Errorf("filling the frame: %w", err)
	}
	return out.String(), nil
}

func (rep *restReport) summary() string { return rep.tables() + "\n" + budgetTable(rep.judge()) }

func (rep *restReport) tables() string {
	return table("server|queries|CPU, ms/s|its probes' program, ms/s|context switches/s|RSS, MiB", rep.Samples, func(s restSample) []any {
		return []any{s.name, s.load, decimals(2, s.ms), decimals(2, s.probes), decimals(1, s.switches), decimals(1, s.mib)}
	}) + "\n" + table("probe|CPU, ms|page faults", rep.Probes, func(p probeCost) []any {
		return []any{p.name, decimals(2, p.ms), thousands(p.faults)}
	})
}

// judge compares with the goals: a cheap probe, and less than the peer at the same load.
func (rep *restReport) judge() []judgement {
	var judged []judgement
	if len(rep.Probes) > 0 {
		p := rep.Probes[0]
		judged = append(judged, judgement{"a probe: CPU", "≤ 1 ms", decimals(2, p.ms) + " ms", plainVerdict(p.ms <= probeGoal)})
	}
	for _, ours := range rep.Samples {
		for _, peer := range rep.Samples {
			if ours.name != oursName || peer.name == oursName || peer.load != ours.load {
				continue
			}
			cpu, other := ours.ms+ours.probes, peer.ms+peer.probes
			judged = append(judged,
				judgement{"queries: " + ours.load + ": CPU with probes", "below " + peer.name, fmt.Sprintf("%.2f ms/s; %.2f ms/s", cpu, other), plainVerdict(cpu < other)},
				judgement{"queries: " + ours.load + ": RSS", "below " + peer.name, fmt.Sprintf("%.1f MiB; %.1f MiB", ours.mib, peer.mib), plainVerdict(ours.mib < peer.mib)})
		}
	}
	return judged
}
