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

// The share of both CPUs used by others above which the report warns.
const mostNoise = 0.05

// render puts the report into the hand-written frame.
func render(rep report) (string, error) {
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
		"Budgets": budgetTable(rep),
		"Loads":   loadTables(rep),
		"Ratios":  ratioTable(rep),
		"Idle":    idleTable(rep),
		"Notes":   notes(rep),
		"Servers": serverTable(rep),
	})
	if err != nil {
		return "", fmt.Errorf("filling the frame: %w", err)
	}
	return out.String(), nil
}

// summary is what the terminal gets: the tables without the frame.
func summary(rep report) string {
	return loadTables(rep) + "\n" + budgetTable(rep)
}

func budgetTable(rep report) string {
	judged := judge(rep)
	rows := make([][]string, len(judged))
	for i, j := range judged {
		rows[i] = []string{j.what, j.budget, j.figure, j.verdict}
	}
	return table([]string{"what", "budget", "this run", "verdict"}, rows)
}

// loadTables is one headed table for each load of the run.
func loadTables(rep report) string {
	var parts []string
	for _, l := range loads() {
		if slices.Contains(rep.Loads, l.name) {
			parts = append(parts, "### "+l.title+"\n\n"+loadTable(rep, l))
		}
	}
	return strings.Join(parts, "\n")
}

func loadTable(rep report, l load) string {
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
	return slices.ContainsFunc(subjects(), func(s subject) bool { return s.name == name && s.knows(l) })
}

// reason tells why a row has no figure for a load; the load "" stands for the start.
func (r result) reason(load string) string {
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
func ratioTable(rep report) string {
	base, ok := figureOf(rep, floorName, "hit")
	if !ok {
		floor, _ := rep.find(floorName)
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

func idleTable(rep report) string {
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

func serverTable(rep report) string {
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

// notes lists what went wrong in single rounds.
func notes(rep report) string {
	var out strings.Builder
	for _, row := range rep.Results {
		for _, note := range row.Notes {
			fmt.Fprintf(&out, "- %s, %s\n", row.Name, note)
		}
	}
	return out.String()
}

// table renders Markdown; short rows are filled up with empty cells.
func table(header []string, rows [][]string) string {
	var out strings.Builder
	line := func(cells []string) {
		for i := range header {
			cell := ""
			if i < len(cells) {
				cell = strings.ReplaceAll(cells[i], "|", `\|`)
			}
			out.WriteString("| " + cell + " ")
		}
		out.WriteString("|\n")
	}
	line(header)
	out.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	return out.String()
}

// thousands writes a number without fraction, its digits in groups of three.
func thousands(n float64) string {
	digits := strconv.FormatFloat(n, 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
