// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The lines around this command's part of the file. The rest belongs to others.
const (
	beginMark = "<!-- begin policy -->\n"
	endMark   = "<!-- end policy -->\n"
)

// section measures everything and returns the text with its marks.
func section(opts options) string {
	sizes := []int{4 * mebibyte, 16 * mebibyte, 64 * mebibyte, 256 * mebibyte}
	queries := windows * opts.queries
	traces := []*trace{zipfTrace(queries, opts.names), searchTrace(queries)}
	var b strings.Builder
	b.WriteString(beginMark)
	b.WriteString(introduction)
	for _, t := range traces {
		b.WriteString(describe(t))
	}
	for _, t := range traces {
		rows := policies()
		b.WriteString("\n" + policyTable(t, rows, sizes, measure(t, rows, sizes), mostHits(t, sizes)))
	}
	b.WriteString(parameters)
	for _, t := range traces {
		rows := variants()
		b.WriteString("\n" + variantTable(t, rows, sizes, measure(t, rows, sizes)))
	}
	b.WriteString(endMark)
	return b.String()
}

// introduction stands before the traces and the tables of the policies.
const introduction = `## Eviction policy

What policies would keep, simulated. One command writes this section, the same on every machine:

    cd bench && go run ./policy -out ../docs/performance.md

[The decision record](adr/0002-eviction-policy.md) says what follows from it.

Both traces are synthetic, from fixed seeds, and asked at 5,000 queries a second of virtual time. A question after its
answer's TTL is a miss, whatever a stale answer could do for it, and the answer is stored again. *First* and *last* are the
hits, in percent, of the first third of a trace, from an empty cache, and of its last third. *Evicted* counts entries of the
whole trace that had to go while they could still be used. Every policy has the same bytes for entries; what an index, lists
and ghosts need is not counted (the log has 89 % of ` + "`cache.size`" + `). An entry has 128 to 408 bytes, 198 on average.
*Random replacement* is what the cache of CoreDNS does.

The ideal lies between two rows, because to compute it is NP-hard where entries differ in size. *MIN* is Belady's rule, which
needs the future: it evicts what is used the furthest ahead, whatever its bytes, and knows that a use after the TTL is none.
*More than any policy can have* is a bound that no cache reaches: the hits that hold the fewest bytes for the shortest time,
as many as fit into size times time, no matter how many would have to be held at the same moment. In the row *nothing
evicted* the size has no bound: where a policy comes up to it, everything that matters fits. In the row *denials by name* one
NXDOMAIN is kept for all types of a name, as the cache does (RFC 2308 section 5); the rows below it are of a cache that does
not.

`

// parameters stands before the tables of the log's parameters.
const parameters = `
### Parameters of the log

*Chosen*: the small log has 10 % of the bytes, one use there moves an entry on, there is a ghost for each slot of the index
(a slot for 100 bytes of the logs), the main log takes unused entries until it was written round once, and an answer that is
stored again keeps its place. The other rows change one of these.
`

// replaceSection puts text in place of the section in the file, or at its end if it has none. A file that does not
// exist is made.
func replaceSection(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the report: %w", err)
	}
	whole, err := splice(string(old), text)
	if err != nil {
		return fmt.Errorf("replacing the section of %s: %w", filepath.Base(path), err)
	}
	if err := os.WriteFile(path, []byte(whole), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// splice is old with its section replaced by text, or with text behind it.
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
