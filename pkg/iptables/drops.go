// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Drops returns the packet counters of all iptables rules that drop or reject, of both
// families and in all tables of the backend's variant. The key is the command that adds the
// rule: "iptables -t filter -A FORWARD … -j DROP", or "ip6tables -t filter -P INPUT DROP"
// for the policy of a built-in chain. A counter that rises during a probe shows a suspect.
// Drops waits for no lock.
func (b *Backend) Drops(ctx context.Context) (map[string]uint64, error) {
	drops := map[string]uint64{}
	for _, v6 := range []bool{false, true} {
		p := b.own.program(v6)
		if p == nil || (v6 && !hasIPv6(b.namespace)) {
			continue
		}
		out, err := p.run(ctx, "-save", "", "-c")
		if err != nil {
			return drops, fmt.Errorf("counting packets: %w", err)
		}
		name := "iptables"
		if v6 {
			name = "ip6tables"
		}
		countDrops(name, out, drops)
	}
	return drops, nil
}

// countDrops parses the output of iptables-save -c. It adds up the counters of equal rules.
func countDrops(name, saved string, drops map[string]uint64) {
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"): // :INPUT DROP [packets:bytes]
			if f := strings.Fields(line); len(f) == 3 && f[1] == "DROP" {
				drops[fmt.Sprintf("%s -t %s -P %s DROP", name, table, f[0][1:])] += packetCount(f[2])
			}
		case strings.HasPrefix(line, "["): // [packets:bytes] -A INPUT …
			count, rule, _ := strings.Cut(line, " ")
			if isDrop(rule) {
				drops[fmt.Sprintf("%s -t %s %s", name, table, rule)] += packetCount(count)
			}
		}
	}
}

// isDrop reports whether a rule's target is DROP or REJECT. The target follows the text of
// a comment.
func isDrop(rule string) bool {
	i := strings.LastIndex(rule, " -j ")
	if i < 0 {
		return false
	}
	target, _, _ := strings.Cut(rule[i+len(" -j "):], " ")
	return target == "DROP" || target == "REJECT"
}

// packetCount parses the first number of "[packets:bytes]".
func packetCount(counters string) uint64 {
	text, _, _ := strings.Cut(strings.TrimPrefix(counters, "["), ":")
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
