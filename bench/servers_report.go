// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

//go:embed performance.md.tmpl
var frame string

// A serversReport is what one run of the section servers found.
type serversReport struct {
	results

	Loads  []string `json:"loads"`
	Binary binary   `json:"binary"`
}

// A binary is the stripped size of node-cache, or why there is none.
type binary struct {
	Bytes   int64  `json:"bytes"`
	Skipped string `json:"skipped,omitempty"`
}

// render puts the report into the hand-written frame.
func (rep *serversReport) render() (string, error) {
	frame, err := template.New("performance.md").Parse(frame)
	if err != nil {
		return "", fmt.Errorf("reading the frame: %w", err)
	}
	var out strings.Builder
	others, worst := rep.others()
	err = frame.Execute(&out, map[string]any{
		"Others":  fmt.Sprintf("%.0f %%, at worst %.0f %%", 100*others, 100*worst),
		"Noisy":   others > mostNoise,
		"Report":  rep,
		"Budgets": budgetTable(judge(rep)),
		"Loads":   rep.loadTables(),
		"Ratios":  rep.ratioTable(),
		"Idle":    rep.idleTable(),
		"Notes":   rep.notes(),
		"Servers": rep.serverTable(),
	})
	if err != nil {
		return "", fmt.Errorf("filling the frame: %w", err)
	}
	return out.String(), nil
}

// summary is what the terminal gets: the tables without the frame.
func (rep *serversReport) summary() string {
	return rep.loadTables() + "\n" + budgetTable(judge(rep))
}

// loadTables is one headed table for each load of the run.
func (rep *serversReport) loadTables() string {
	var parts []string
	for _, l := range loads() {
		if slices.Contains(rep.Loads, l.name) {
			parts = append(parts, "### "+l.title+"\n\n"+rep.loadTable(l))
		}
	}
	return strings.Join(parts, "\n")
}

func (rep *serversReport) loadTable(l load) string {
	header := []string{"server", "q/s on one core", "core used", "CPU µs/query (rounds)", "mean latency µs", "lost", "wrong", "RSS MiB"}
	var rows [][]string
	for _, row := range rep.Results {
		if !known(row.Name, l) {
			continue // the frame says why
		}
		f, ok := row.figure(l.name)
		if !ok {
			rows = append(rows, []string{row.Name, notMeasured + ": " + row.reason(l.name)})
			continue
		}
		rows = append(rows, []string{
			row.Name, thousands(f.QPS), fmt.Sprintf("%.0f %%", 100*f.Busy),
			fmt.Sprintf("%.2f (%.2f–%.2f)", f.CPU, f.minCPU, f.maxCPU),
			thousands(f.Latency), strconv.FormatInt(f.Lost, 10), strconv.FormatInt(f.Wrong, 10), fmt.Sprintf("%.0f", f.MiB),
		})
	}
	return table(header, rows)
}

// known reports whether the load is for the server called name.
func known(name string, l load) bool {
	return slices.ContainsFunc(subjects(), func(s subject) bool {
		return s.name == name && slices.ContainsFunc(s.starts(), func(start subject) bool { return start.serves(l) })
	})
}

// reason is why a row has no figure for a load; the load "" stands for the start.
func (r *result) reason(load string) string {
	if r.Skipped != "" {
		return r.Skipped
	}
	for _, n := range slices.Backward(r.Notes) {
		if n.Load == "" || n.Load == load {
			return n.String()
		}
	}
	return "no sample"
}

// ratioTable divides each cost by the floor's cost of a hit.
func (rep *serversReport) ratioTable() string {
	base, ok := rep.figureOf(floorName, "hit")
	if !ok {
		floor := rep.find(floorName)
		return "No ratios: the floor was not measured: " + floor.reason("hit") + ".\n"
	}
	header := []string{"server"}
	for _, l := range loads() {
		if slices.Contains(rep.Loads, l.name) {
			header = append(header, l.title)
		}
	}
	var rows [][]string
	for _, row := range rep.Results {
		cells := []string{row.Name}
		for _, name := range rep.Loads {
			cell := "–"
			if f, ok := row.figure(name); ok {
				cell = fmt.Sprintf("%.2f", f.CPU/base.CPU)
			}
			cells = append(cells, cell)
		}
		rows = append(rows, cells)
	}
	return table(header, rows)
}

func (rep *serversReport) idleTable() string {
	rows := make([][]string, 0, len(rep.Results))
	for _, row := range rep.Results {
		cell := notMeasured + ": " + row.reason("")
		if len(row.IdleMiB) > 0 {
			cell = fmt.Sprintf("%.1f", median(row.IdleMiB))
		}
		rows = append(rows, []string{row.Name, cell})
	}
	return table([]string{"server", "RSS MiB, empty cache, no cluster"}, rows)
}

func (rep *serversReport) serverTable() string {
	rows := make([][]string, 0, len(rep.Results))
	for _, row := range rep.Results {
		version := row.Version
		if row.Skipped != "" {
			version = notMeasured + ": " + row.Skipped
		}
		rows = append(rows, []string{row.Name, version})
	}
	return table([]string{"server", "version"}, rows)
}

// The budgets of the project. The first two are ratios to the floor of the same run and travel between machines;
// the others are absolute and were set on a machine whose floor cost 3.3 to 3.7 µs.
const (
	hitRatio    = 1.25
	nxRatio     = 1.35 // also for answers and denials of the cluster zone
	tcpMicros   = 9
	missMicros  = 11
	missTCP     = 13 // µs, with the upstream over pipelined TCP
	missQPS     = 79_000
	idleMiB     = 40
	binaryBytes = 45_000_000
	mostLost    = 0.01  // share of queries without an answer above which a figure says nothing
	mostWrong   = 0.001 // the same for answers with the wrong response code
)

// judge holds every budget against the report.
func judge(rep *serversReport) []judgement {
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
func judgeRatio(rep *serversReport, load, what string, limit float64) judgement {
	j := judgement{what: what, budget: fmt.Sprintf("≤ %.2f × floor", limit), figure: notMeasured, verdict: notMeasured}
	base, okFloor := rep.figureOf(floorName, "hit")
	ours, okOurs := rep.figureOf(oursName, load)
	if !okFloor || !okOurs {
		return j
	}
	ratio := ours.CPU / base.CPU
	j.figure = fmt.Sprintf("%.2f × floor (%.2f µs to %.2f µs)", ratio, ours.CPU, base.CPU)
	j.verdict = verdict(ratio <= limit, ours)
	return j
}

// judgePeers compares a hit with the cheapest of the other servers.
func judgePeers(rep *serversReport) judgement {
	j := judgement{what: "hit, UDP: CPU per query", budget: "below every peer", figure: notMeasured, verdict: notMeasured}
	ours, ok := rep.figureOf(oursName, "hit")
	var (
		lowest  figure
		best    string
		missing []string
	)
	for _, peer := range rep.Results {
		if peer.Name == floorName || peer.Name == oursName {
			continue
		}
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
func judgeCPU(rep *serversReport, load, what string, limit float64) judgement {
	j := judgement{what: what, budget: fmt.Sprintf("≤ %.0f µs", limit), figure: notMeasured, verdict: notMeasured}
	if ours, ok := rep.figureOf(oursName, load); ok {
		j.figure = fmt.Sprintf("%.2f µs", ours.CPU)
		j.verdict = verdict(ours.CPU <= limit, ours)
	}
	return j
}

func judgeMissRate(rep *serversReport) judgement {
	j := judgement{
		what: "miss, UDP: rate on one core", budget: "≥ " + thousands(missQPS) + " q/s",
		figure: notMeasured, verdict: notMeasured,
	}
	if ours, ok := rep.figureOf(oursName, "miss"); ok {
		j.figure = fmt.Sprintf("%s q/s with %.0f %% of the core", thousands(ours.QPS), 100*ours.Busy)
		j.verdict = verdict(ours.QPS >= missQPS, ours)
	}
	return j
}

func judgeIdle(rep *serversReport) judgement {
	j := judgement{
		what: "memory, empty cache, no cluster", budget: fmt.Sprintf("≤ %d MiB RSS", idleMiB),
		figure: notMeasured, verdict: notMeasured,
	}
	if ours := rep.find(oursName); ours != nil && len(ours.IdleMiB) > 0 {
		mib := median(ours.IdleMiB)
		j.figure = fmt.Sprintf("%.1f MiB", mib)
		j.verdict = verdict(mib <= idleMiB, figure{})
	}
	return j
}

func judgeBinary(rep *serversReport) judgement {
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
func verdict(within bool, f figure) string {
	asked := float64(f.Completed + f.Lost)
	switch {
	case float64(f.Lost) > mostLost*asked:
		return fmt.Sprintf("**not judged**: %.1f %% of the queries lost", 100*float64(f.Lost)/asked)
	case float64(f.Wrong) > mostWrong*asked:
		return fmt.Sprintf("**not judged**: %.1f %% of the answers wrong", 100*float64(f.Wrong)/asked)
	case within:
		return met
	default:
		return notMet
	}
}
