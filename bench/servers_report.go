// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

//go:embed performance.md.tmpl
var frame string

// A serversReport is what one run of the section servers found.
type serversReport struct {
	results

	Loads  []string
	Binary int64 // bytes of node-cache's; 0: not measured
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
		"Notes":   rep.notes(),
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

// loadTables is one headed table for each kind of figure, with a column for each load of the run.
func (rep *serversReport) loadTables() string {
	base, hasBase := rep.figureOf(floorName, "hit")
	cost := rep.loadTable(func(f figure) string {
		if !hasBase {
			return decimals(2, f.CPU)
		}
		return fmt.Sprintf("%.2f (%.2f)", f.CPU, f.CPU/base.CPU)
	})
	return "### CPU per query\n\n" + rep.serverList() +
		"\nIn µs, and the ratio to the floor in parentheses. Rounds differ by at most " + rep.spread() + ".\n\n" + cost +
		"\n### Memory and lost queries\n\nRSS in MiB. Lost and wrong (response code) of all loads.\n\n" + rep.totalTable()
}

// started is the rows of the servers that were started. The list of servers has the reason why one was not.
func (rep *serversReport) started() []*result {
	return slices.DeleteFunc(slices.Clone(rep.Results), func(row *result) bool { return row.Skipped != "" })
}

// totalTable has the memory of each server, and the queries that it lost or answered wrongly.
func (rep *serversReport) totalTable() string {
	return table("server|empty|highest after a load|lost, wrong", rep.started(), func(row *result) []any {
		empty, highest, lost, wrong := "–", 0.0, int64(0), int64(0)
		if len(row.IdleMiB) > 0 {
			empty = decimals(1, median(row.IdleMiB))
		}
		for _, name := range rep.Loads {
			if f, ok := row.figure(name); ok {
				highest, lost, wrong = max(highest, f.MiB), lost+f.Lost, wrong+f.Wrong
			}
		}
		return []any{row.Name, empty, decimals(0, highest), fmt.Sprintf("%s, %s", thousands(lost), thousands(wrong))}
	})
}

// loadTable has a row for each server that was started, and a cell for each load.
func (rep *serversReport) loadTable(cell func(figure) string) string {
	header := []string{"server"}
	for _, l := range loads() {
		if slices.Contains(rep.Loads, l.name) {
			header = append(header, l.title)
		}
	}
	return table(strings.Join(header, "|"), rep.started(), func(row *result) []any {
		cells := []any{row.Name}
		for _, name := range rep.Loads {
			if f, ok := row.figure(name); ok {
				cells = append(cells, cell(f))
			} else {
				cells = append(cells, "–")
			}
		}
		return cells
	})
}

// spread is how far the cost of a load differs between rounds, at most.
func (rep *serversReport) spread() string {
	most := 0.0
	for _, row := range rep.Results {
		for _, name := range rep.Loads {
			if f, ok := row.figure(name); ok {
				most = max(most, (f.maxCPU-f.minCPU)/f.CPU)
			}
		}
	}
	return decimals(0, 100*most) + " %"
}

// serverList names each server with its version, or why it was not started.
func (rep *serversReport) serverList() string {
	names := make([]string, 0, len(rep.Results))
	for _, row := range rep.Results {
		switch {
		case row.Skipped != "":
			names = append(names, fmt.Sprintf("%s (%s: %s)", row.Name, notMeasured, row.Skipped))
		case row.Name == floorName:
			names = append(names, fmt.Sprintf("%s (%s)", row.Name, row.Version))
		default:
			names = append(names, row.Name+" "+row.Version)
		}
	}
	return strings.Join(names, ", ") + ".\n"
}

// The budgets of the project. The first two are ratios to the floor of the same run and travel between machines;
// the others are absolute and were set on a machine whose floor cost 3.3 to 3.7 µs.
const (
	hitRatio   = 1.25
	nxRatio    = 1.35
	tcpMicros  = 9
	missMicros = 11
	missTCP    = 13 // µs, with the upstream over pipelined TCP
	missQPS    = 79_000
	podsRatio  = 1.05
	idleMiB    = 40
	binaryMB   = 45
	mostLost   = 0.01  // share of queries without an answer above which a figure says nothing
	mostWrong  = 0.001 // the same for answers with the wrong response code
)

// judge holds every budget against the report.
func judge(rep *serversReport) []judgement {
	return []judgement{
		judgeRatio(rep, "hit", "hit: CPU", hitRatio),
		judgePeers(rep),
		judgePods(rep),
		judgeRatio(rep, "nx", "NXDOMAIN hit: CPU", nxRatio),
		judgeCPU(rep, "tcp", "hit, TCP: CPU", tcpMicros),
		judgeCPU(rep, "miss", "miss: CPU", missMicros),
		judgeLoad(rep, "miss", "miss: rate on one core", "≥ "+thousands(missQPS)+" q/s", func(f figure) (string, bool) {
			return fmt.Sprintf("%s q/s with %.0f %% of the core", thousands(f.QPS), 100*f.Busy), f.QPS >= missQPS
		}),
		judgeCPU(rep, "misstcp", "miss, over TCP: CPU", missTCP),
		judgeSize("memory, empty cache", fmt.Sprintf("≤ %d MiB RSS", idleMiB), "%.1f MiB", rep.idle(), idleMiB),
		judgeSize("binary, stripped", fmt.Sprintf("≤ %d MB", binaryMB), "%.1f MB", float64(rep.Binary)/1e6, binaryMB),
	}
}

// judgeLoad holds node-cache's figures of a load against a budget.
func judgeLoad(rep *serversReport, load, what, budget string, of func(figure) (text string, within bool)) judgement {
	j := judgement{what: what, budget: budget, figure: notMeasured, verdict: notMeasured}
	if ours, ok := rep.figureOf(oursName, load); ok {
		text, within := of(ours)
		j.figure, j.verdict = text, verdict(within, ours)
	}
	return j
}

// judgeRatio compares with the floor's cost of a hit.
func judgeRatio(rep *serversReport, load, what string, limit float64) judgement {
	budget := fmt.Sprintf("≤ %.2f × floor", limit)
	base, ok := rep.figureOf(floorName, "hit")
	if !ok {
		return judgement{what: what, budget: budget, figure: notMeasured, verdict: notMeasured}
	}
	return judgeLoad(rep, load, what, budget, func(f figure) (string, bool) {
		ratio := f.CPU / base.CPU
		return fmt.Sprintf("%.2f × floor", ratio), ratio <= limit
	})
}

// judgeCPU compares with an absolute cost in µs.
func judgeCPU(rep *serversReport, load, what string, limit float64) judgement {
	return judgeLoad(rep, load, what, fmt.Sprintf("≤ %.0f µs", limit), func(f figure) (string, bool) {
		return fmt.Sprintf("%.2f µs", f.CPU), f.CPU <= limit
	})
}

// judgeSize compares a size, which is 0 where it was not measured.
func judgeSize(what, budget, format string, size, limit float64) judgement {
	if size == 0 {
		return judgement{what: what, budget: budget, figure: notMeasured, verdict: notMeasured}
	}
	return judgement{what: what, budget: budget, figure: fmt.Sprintf(format, size), verdict: verdict(size <= limit, figure{})}
}

// idle is node-cache's memory at rest in MiB, 0 where it was not measured.
func (rep *serversReport) idle() float64 {
	if ours := rep.find(oursName); ours != nil && len(ours.IdleMiB) > 0 {
		return median(ours.IdleMiB)
	}
	return 0
}

// judgePeers compares a hit with the cheapest of the other servers.
func judgePeers(rep *serversReport) judgement {
	var lowest figure
	best, missing := "", []string(nil)
	for _, peer := range rep.Results {
		f, measured := peer.figure("hit")
		switch {
		case peer.Name == floorName || peer.Name == oursName || peer.Name == podsName:
		case !measured:
			missing = append(missing, peer.Name)
		case best == "" || f.CPU < lowest.CPU:
			best, lowest = peer.Name, f
		}
	}
	if best == "" {
		return judgement{what: "hit: CPU", budget: "below every peer", figure: notMeasured, verdict: notMeasured}
	}
	return judgeLoad(rep, "hit", "hit: CPU", "below every peer", func(f figure) (string, bool) {
		text := fmt.Sprintf("%.2f µs; %s has %.2f µs", f.CPU, best, lowest.CPU)
		if len(missing) > 0 {
			text += " (not measured: " + strings.Join(missing, ", ") + ")"
		}
		return text, f.CPU < lowest.CPU
	})
}

// judgePods compares a hit that is counted by pod and name with one that is not.
func judgePods(rep *serversReport) judgement {
	counted, ok := rep.figureOf(podsName, "hit")
	j := judgement{what: "hit, pods.identity: CPU", budget: fmt.Sprintf("≤ %.2f × without", podsRatio), figure: notMeasured, verdict: notMeasured}
	if plain, both := rep.figureOf(oursName, "hit"); ok && both {
		ratio := counted.CPU / plain.CPU
		j.figure, j.verdict = fmt.Sprintf("%.2f × without", ratio), verdict(ratio <= podsRatio, counted)
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
