// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodecache/node-cache/pkg/agent"
)

// entriesText is what is held of a name: a line for each entry, and its records.
func entriesText(list []agent.CacheEntry) string {
	if len(list) == 0 {
		return "nothing is held of it\n"
	}
	var b strings.Builder
	for i := range list {
		e := &list[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		_, _ = fmt.Fprintf(&b, "%s %s\n", e.Name, kind(e))
		_, _ = fmt.Fprintf(&b, "  %s, %s, age %s, %s, %s, %d bytes\n", e.State, e.Rcode, seconds(e.Age), left(e.Left), hits(e.Hits), e.Bytes)
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, record := range e.Records {
			_, _ = fmt.Fprintf(w, "  %s\n", columned(record))
		}
		_ = w.Flush()
	}
	return b.String()
}

// topText is a table of entries.
func topText(list []agent.CacheEntry) string {
	if len(list) == 0 {
		return "the cache is empty\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "HITS\tBYTES\tSTATE\tRCODE\tAGE\tLEFT\tNAME\tTYPE")
	for i := range list {
		e := &list[i]
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Hits, e.Bytes, e.State, e.Rcode, seconds(e.Age), seconds(e.Left), e.Name, kind(e))
	}
	_ = w.Flush()
	return b.String()
}

// kind is the type of an entry and what else tells it from others.
func kind(e *agent.CacheEntry) string {
	parts := append([]string{e.Type}, e.Flags...)
	if e.Subnet != "" {
		parts = append(parts, "subnet "+e.Subnet)
	}
	return strings.Join(parts, " ")
}

// columned puts tabs between the first fields of a record: name, TTL, class, type.
func columned(record string) string { return strings.Replace(record, " ", "\t", 4) }

// seconds spells a number of seconds for a human.
func seconds(n int64) string { return (time.Duration(n) * time.Second).String() }

func left(n int64) string {
	if n < 0 {
		return "over since " + seconds(-n)
	}
	return "left " + seconds(n)
}

func hits(n int) string {
	switch n {
	case 1:
		return "1 hit"
	case 1<<16 - 1:
		return "65535 hits or more"
	}
	return fmt.Sprintf("%d hits", n)
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
