// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// The lines around this command's part of the file. The rest belongs to others.
const (
	beginMark = "<!-- begin cluster -->\n"
	endMark   = "<!-- end cluster -->\n"
)

// section is the text of the report with its marks.
func section(rep report) string {
	var b strings.Builder
	b.WriteString(beginMark)
	headless := rep.opts.services / headlessShare
	others, worst := rep.others()
	fmt.Fprintf(&b, introduction, thousands(rep.opts.services), thousands(headless), thousands(headless*endpointsPer), rep.machine, rep.generator, 100*others, 100*worst)
	if others > mostNoise {
		b.WriteString(noiseText)
	}
	b.WriteString("\n" + table([]string{"what", "budget", "this run", "verdict"}, judge(rep)))
	fmt.Fprintf(&b, startText, rep.opts.rounds)
	b.WriteString("\n" + startTable(rep))
	fmt.Fprintf(&b, loadText, rep.opts.seconds)
	b.WriteString("\n" + loadTable(rep))
	if rep.opts.events > 0 {
		fmt.Fprintf(&b, eventText, thousands(rep.opts.events))
		b.WriteString("\n" + eventTable(rep))
	}
	if len(rep.bills) > 0 {
		fmt.Fprintf(&b, costText, smallSet, thousands(rep.changes), rep.churned.Seconds(), float64(rep.changes)/rep.churned.Seconds())
		b.WriteString("\n" + syncTable(rep) + "\n" + churnTable(rep))
	}
	b.WriteString(noteList(rep))
	b.WriteString(endMark)
	return b.String()
}

const introduction = `## Cluster zone

One run of ` + "`make bench-cluster`" + `, which writes this part: a kube-apiserver 1.36 with etcd, %s services of which %s are
headless, and %s endpoints of the latter in slices of 100. Each server runs by itself on CPU 0; the API server, etcd, a proxy
that counts bytes and the load generator share CPU 1. node-cache runs as the agent of a node with ` + "`cluster.resolver: local`" + `
and as ` + "`node-cache resolver`" + `, with the slices of headless services or with all. CoreDNS 1.14.7 has kubeadm's Corefile without
the plugins that only observe (health, prometheus, loop, reload) and without loadbalance: in a cluster it costs more. That
Corefile keeps the names of the cluster out of CoreDNS's cache, but not the reverse names, so its PTR answers come from the cache.

%s, %s. Other programs, the idle API server among them, took %.0f %% of both CPUs during the loads, at worst %.0f %%.
`

// The share of both CPUs used by others above which the report warns.
const mostNoise = 0.05

const noiseText = `
**The machine was not quiet: other programs took CPU from the API server and the load generator. Times and rates are too bad.**
`

const startText = `
### Start and memory

Medians of %d starts, and the highest peak. *Ready*: the readiness URL answers 200, a headless set is answered and an unknown name
is denied. The times count from the start of the process. *First* and *last byte* are of what the API server sends:
it builds and encrypts the objects on the other CPU, and that is most of the time in between. *At rest* is five seconds
after ready, *after the loads* is after the queries of the next table.
`

const loadText = `
### CPU per query

In µs of the server's user and system time per answer, with the queries per second on its core in parentheses; %d s each.
*Floor* is the C program of the other tables on this page with one fixed answer, over UDP. Services are asked by a Zipf law, headless
sets and endpoints evenly; a denial is an external name behind a suffix of a pod's search list. A set of 100 addresses does
not fit into 512 bytes: over UDP it is cut, with the TC bit, and over TCP it is whole. *lost* and *wrong* are sums over all loads.
`

const eventText = `
### Event to answer

%s services are created one after another, while 100 queries a second ask for the name, and deleted again. The time is from the
API server's answer to the creation until the first right answer has arrived, so up to 10 ms are spent waiting for the next
question. *Older* counts answers to questions asked after a newer answer had arrived, *wrong* those that were true at no time.
`

const costText = `
### What a node costs the API server

Now every service with an address has a slice of %d endpoints too. First each client starts and receives all that it wants;
then objects change under all of them at once: %s changes in %.0f s (%.0f a second), to ports of services and to the readiness of
endpoints in equal parts, each object as likely as another. Bytes are TCP payload, TLS included. *CPU* and *RSS* are the
client's own. kube-proxy runs in a network namespace of its own, in nftables mode; it takes no slices of headless services.
`

func startTable(rep report) string {
	header := []string{"server", "first byte", "last byte", "ready", "RSS MiB: peak until ready", "at rest", "after the loads"}
	rows := make([][]string, 0, len(rep.results))
	for _, r := range rep.results {
		l, ok := r.medianStart()
		if !ok {
			rows = append(rows, []string{r.name, notMeasured})
			continue
		}
		rows = append(rows, []string{
			r.name, seconds(l.first), seconds(l.last), seconds(l.ready),
			fmt.Sprintf("%.0f", l.peak), fmt.Sprintf("%.0f", l.rest), fmt.Sprintf("%.0f", l.loaded),
		})
	}
	return table(header, rows)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func loadTable(rep report) string {
	all := loads()
	header := make([]string, 0, len(all)+3)
	header = append(header, "server")
	for _, l := range all {
		header = append(header, l.title)
	}
	header = append(header, "lost", "wrong")
	var rows [][]string
	if f, ok := medianStartOf(rep.floor); ok {
		rows = append(rows, []string{"floor", cost(f)})
	}
	for _, r := range rep.results {
		cells := []string{r.name}
		var lost, wrong int64
		for _, l := range all {
			s, ok := r.medians(l.name)
			if !ok {
				cells = append(cells, notMeasured)
				continue
			}
			cells = append(cells, cost(s))
			lost += s.lost
			wrong += s.wrong
		}
		rows = append(rows, append(cells, strconv.FormatInt(lost, 10), strconv.FormatInt(wrong, 10)))
	}
	return table(header, rows)
}

func cost(s loadResult) string { return fmt.Sprintf("%.2f (%s)", s.cpu, thousands(int(s.qps))) }

func eventTable(rep report) string {
	header := []string{"server", "events", "p50", "p99", "max", "older", "wrong", "lost"}
	var rows [][]string
	for _, r := range rep.results {
		if r.events == nil {
			rows = append(rows, []string{r.name, notMeasured})
			continue
		}
		e := r.events
		row := []string{r.name, strconv.Itoa(len(e.latencies))}
		for _, q := range []float64{0.5, 0.99, 1} {
			row = append(row, fmt.Sprintf("%.1f ms", e.quantile(q).Seconds()*1000))
		}
		for _, n := range []int{e.older, e.wrong, e.lost} {
			row = append(row, strconv.Itoa(n))
		}
		rows = append(rows, row)
	}
	return table(header, rows)
}

func syncTable(rep report) string {
	header := []string{"first sync", "KiB from the API server", "KiB to it", "requests"}
	var rows [][]string
	for _, b := range rep.bills {
		if b.skipped != "" {
			rows = append(rows, []string{b.name, notMeasured + ": " + b.skipped})
			continue
		}
		rows = append(rows, []string{b.name, kib(b.sync.ToClient), kib(b.sync.ToServer), tally(b.syncTally)})
	}
	return table(header, rows)
}

func churnTable(rep report) string {
	header := []string{"changes", "KiB from the API server", "bytes for each change", "KiB to it", "requests", "CPU ms/s", "RSS MiB"}
	var rows [][]string
	for _, b := range rep.bills {
		if b.skipped != "" {
			rows = append(rows, []string{b.name, notMeasured + ": " + b.skipped})
			continue
		}
		rows = append(rows, []string{
			b.name, kib(b.churn.ToClient), thousands(int(b.churn.ToClient) / max(1, rep.changes)), kib(b.churn.ToServer), tally(b.churnTally),
			fmt.Sprintf("%.1f", float64(b.cpu.Milliseconds())/rep.churned.Seconds()), fmt.Sprintf("%.0f", b.mib),
		})
	}
	return table(header, rows)
}

func kib(bytes int64) string { return thousands(int((bytes + 1023) >> 10)) }

// tally is a count of requests for a cell.
func tally(tallies []kubetest.Tally) string {
	total := 0
	parts := make([]string, 0, len(tallies))
	for _, t := range tallies {
		total += t.Count
		resource := t.Resource
		if resource == "" {
			resource = "other"
		}
		parts = append(parts, fmt.Sprintf("%s %s %d", t.Verb, resource, t.Count))
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

// noteList is what went wrong in single rounds.
func noteList(rep report) string {
	var b strings.Builder
	for _, r := range rep.results {
		for _, n := range r.notes {
			fmt.Fprintf(&b, "- %s, %s\n", r.name, n)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\nNot every round went through:\n\n" + b.String()
}

// table renders Markdown; short rows are filled up with empty cells.
func table(header []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for i := range header {
			cell := ""
			if i < len(cells) {
				cell = strings.ReplaceAll(cells[i], "|", `\|`)
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
	}
	line(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// thousands writes a number with its digits in groups of three.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// replaceSection puts text in place of the section in the file, or at its end if it has none.
func replaceSection(path, text string) error {
	whole, err := spliced(path, text)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(whole), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// spliced is the file with its section replaced by text, or with text behind it. There may be no such file.
func spliced(path, text string) (string, error) {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the report: %w", err)
	}
	whole, err := splice(string(old), text)
	if err != nil {
		return "", fmt.Errorf("replacing the section of %s: %w", filepath.Base(path), err)
	}
	return whole, nil
}

func splice(old, text string) (string, error) {
	before, rest, begins := strings.Cut(old, beginMark)
	_, after, ends := strings.Cut(rest, endMark)
	switch {
	case begins && ends:
		return before + text + after, nil
	case begins || strings.Contains(old, endMark):
		return "", errors.New("one of its two marks is missing")
	case old == "":
		return text, nil
	}
	return strings.TrimRight(old, "\n") + "\n\n" + text, nil
}
