// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// The budgets of the project. The first two are ratios to the floor of the same run and travel between machines;
// the others are absolute and were set on a machine whose floor cost 3.3 to 3.7 µs.
const (
	hitRatio     = 1.25
	nxRatio      = 1.35 // also for answers and denials of the cluster zone
	tcpMicros    = 9
	missMicros   = 11
	missTCP      = 13 // µs, with the upstream over pipelined TCP
	missQPS      = 79_000
	idleMiB      = 40
	binaryBytes  = 45_000_000
	mostLost     = 0.01  // share of queries without an answer above which a figure says nothing
	mostWrong    = 0.001 // the same for answers with the wrong response code
	notMeasured  = "not measured"
	verdictMet   = "met"
	verdictUnmet = "**not met**"
)

// A judgement is one budget beside the figure of this run.
type judgement struct {
	what, budget, figure, verdict string
}

// judge holds every budget against the report.
func judge(rep report) []judgement {
	return []judgement{
		judgeRatio(rep, "hit", "hit, UDP: CPU per query", hitRatio),
		judgePeers(rep),
		judgeRatio(rep, "nx", "NXDOMAIN hit, UDP: CPU per query", nxRatio),
		judgeRatio(rep, "cluster", "cluster zone, address of a service: CPU per query", nxRatio),
		judgeRatio(rep, "absent", "cluster zone, denial: CPU per query", nxRatio),
		judgeCPU(rep, "tcp", "hit, TCP: CPU per query", tcpMicros),
		judgeCPU(rep, "miss", "miss, UDP: CPU per query", missMicros),
		judgeMissRate(rep),
		judgeCPU(rep, "misstcp", "miss, UDP, the upstream over TCP: CPU per query", missTCP),
		judgeIdle(rep),
		judgeBinary(rep),
	}
}

// judgeRatio compares with the floor's cost of a hit.
func judgeRatio(rep report, load, what string, limit float64) judgement {
	j := judgement{what: what, budget: fmt.Sprintf("≤ %.2f × floor", limit), figure: notMeasured, verdict: notMeasured}
	base, okFloor := figureOf(rep, floorName, "hit")
	ours, okOurs := figureOf(rep, oursName, load)
	if !okFloor || !okOurs {
		return j
	}
	ratio := ours.CPU / base.CPU
	j.figure = fmt.Sprintf("%.2f × floor (%.2f µs to %.2f µs)", ratio, ours.CPU, base.CPU)
	j.verdict = verdict(ratio <= limit, ours)
	return j
}

// judgePeers compares a hit with the cheapest of the other servers.
func judgePeers(rep report) judgement {
	j := judgement{what: "hit, UDP: CPU per query", budget: "below every peer", figure: notMeasured, verdict: notMeasured}
	ours, ok := figureOf(rep, oursName, "hit")
	var (
		lowest  figure
		best    string
		missing []string
	)
	for _, peer := range rep.peers() {
		f, measured := peer.figure("hit")
		if !measured {
			missing = append(missing, peer.Name)
			continue
		}
		if best == "" || f.CPU < lowest.CPU {
			best, lowest = peer.Name, f
		}
	}
	if !ok || best == "" {
		return j
	}
	j.figure = fmt.Sprintf("%.2f µs; the lowest peer is %s with %.2f µs", ours.CPU, best, lowest.CPU)
	if len(missing) > 0 {
		j.figure += " (not measured: " + strings.Join(missing, ", ") + ")"
	}
	j.verdict = verdict(ours.CPU < lowest.CPU, ours)
	return j
}

// judgeCPU compares with an absolute cost in µs.
func judgeCPU(rep report, load, what string, limit float64) judgement {
	j := judgement{what: what, budget: fmt.Sprintf("≤ %.0f µs", limit), figure: notMeasured, verdict: notMeasured}
	if ours, ok := figureOf(rep, oursName, load); ok {
		j.figure = fmt.Sprintf("%.2f µs", ours.CPU)
		j.verdict = verdict(ours.CPU <= limit, ours)
	}
	return j
}

func judgeMissRate(rep report) judgement {
	j := judgement{
		what: "miss, UDP: rate on one core", budget: "≥ " + thousands(missQPS) + " q/s",
		figure: notMeasured, verdict: notMeasured,
	}
	if ours, ok := figureOf(rep, oursName, "miss"); ok {
		j.figure = fmt.Sprintf("%s q/s with %.0f %% of the core", thousands(ours.QPS), 100*ours.Busy)
		j.verdict = verdict(ours.QPS >= missQPS, ours)
	}
	return j
}

func judgeIdle(rep report) judgement {
	j := judgement{
		what: "memory, empty cache, no cluster", budget: fmt.Sprintf("≤ %d MiB RSS", idleMiB),
		figure: notMeasured, verdict: notMeasured,
	}
	if ours, ok := rep.find(oursName); ok && len(ours.IdleMiB) > 0 {
		mib := median(ours.IdleMiB)
		j.figure = fmt.Sprintf("%.1f MiB", mib)
		j.verdict = verdict(mib <= idleMiB, figure{})
	}
	return j
}

func judgeBinary(rep report) judgement {
	j := judgement{
		what: "binary, stripped", budget: fmt.Sprintf("≤ %d MB", binaryBytes/1_000_000),
		figure: notMeasured, verdict: notMeasured,
	}
	if rep.Binary.Bytes > 0 {
		j.figure = fmt.Sprintf("%.1f MB", float64(rep.Binary.Bytes)/1e6)
		j.verdict = verdict(rep.Binary.Bytes <= binaryBytes, figure{})
	} else if rep.Binary.Skipped != "" {
		j.figure = notMeasured + ": " + rep.Binary.Skipped
	}
	return j
}

// verdict is the last column. A load that lost queries or got wrong answers is not a cheap one: it is not judged.
func verdict(met bool, f figure) string {
	asked := float64(f.Completed + f.Lost)
	switch {
	case float64(f.Lost) > mostLost*asked:
		return fmt.Sprintf("**not judged**: %.1f %% of the queries lost", 100*float64(f.Lost)/asked)
	case float64(f.Wrong) > mostWrong*asked:
		return fmt.Sprintf("**not judged**: %.1f %% of the answers wrong", 100*float64(f.Wrong)/asked)
	case met:
		return verdictMet
	default:
		return verdictUnmet
	}
}

// figureOf returns the medians of a subject under a load, and false where they were not measured.
func figureOf(rep report, name, load string) (figure, bool) {
	row, ok := rep.find(name)
	if !ok {
		return figure{}, false
	}
	return row.figure(load)
}
