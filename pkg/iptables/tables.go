// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A variantTables is one variant: its programs and its tables in the kernel.
type variantTables struct {
	variant   Variant
	programs  [2]*program // of IPv4 and of IPv6; the latter may be nil
	nft       *nftKernel  // nil: iptables-legacy
	namespace netns.NsHandle
	now       func() time.Time // Config.Now; nil: rules are always read again

	readMu sync.Mutex // guards nft and last
	// The rules of each family at the last read, and the fingerprint just before it.
	last [2]struct {
		at          time.Time
		fingerprint string
		lines       map[string][]string
	}

	// The lines of the last write, by family and table, and how iptables printed them right after it. Versions of
	// iptables print some rules in other words. Guarded by Backend.writeMu.
	written, printed [2]map[string][]string
}

// openTables opens a variant. IPv6 is optional.
func openTables(variant Variant, wait time.Duration, in netns.NsHandle, now func() time.Time) (*variantTables, error) {
	s := &variantTables{variant: variant, namespace: in, now: now}
	var err error
	if s.programs[0], err = findProgram(variant, false, wait, in); err != nil {
		return nil, err
	}
	if s.programs[1], err = findProgram(variant, true, wait, in); err != nil {
		s.programs[1] = nil // Apply returns an error if the rules have IPv6 addresses
	}
	if variant == Nft {
		if s.nft, err = openNft(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *variantTables) program(v6 bool) *program {
	return s.programs[family(v6)]
}

// agentLines returns the lines by which iptables-save describes chains and the jumps to them, by table and sorted by chain.
func agentLines(chains []chain) map[string][]string {
	lines := map[string][]string{}
	for _, c := range chains {
		if len(c.rules) == 0 {
			continue
		}
		list := lines[c.table]
		list = append(list, "-N "+c.name)
		for _, rule := range c.rules {
			list = append(list, "-A "+c.name+" "+rule)
		}
		for _, hook := range c.hooks {
			list = append(list, jumpLine(hook, c.name))
		}
		lines[c.table] = list
	}
	for _, list := range lines {
		sortByChain(list)
	}
	return lines
}

// sortByChain sorts lines by the name of the chain, and leaves those of one chain in order.
func sortByChain(lines []string) {
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(chainOf(a), chainOf(b)) })
}

func chainOf(line string) string {
	if f := strings.SplitN(line, " ", 3); len(f) > 1 {
		return f[1]
	}
	return ""
}

// mustFollow reports whether line, a jump in a built-in chain of a table, has to come after the agent's: that of kube-proxy in nat,
// and those of Cilium in raw, where the first target CT decides. Both programs insert their jump at the front only if it is missing,
// Cilium also when it starts or its configuration changes. So the agent and they do not overtake each other forever.
func mustFollow(table, line string) bool {
	switch table {
	case "nat":
		return strings.HasSuffix(line, "-j KUBE-SERVICES")
	case "raw": // while Cilium replaces its chains, the old ones are called OLD_CILIUM_
		return strings.HasSuffix(line, "CILIUM_PRE_raw") || strings.HasSuffix(line, "CILIUM_OUTPUT_raw")
	}
	return false
}

// selectLines returns the lines of iptables -S or iptables-save for one table that concern the agent, as agentLines writes
// them: its chains, the jumps to them, and before those a jump that must follow them. The position of others does not matter:
// programs such as Calico always insert at the front, and an earlier rule that drops is intended.
func selectLines(table string, lines []string, chains []chain) []string {
	var list []string
	ahead := map[string]string{} // jumps that must follow, by built-in chain
	for _, line := range lines {
		if name, isChain := strings.CutPrefix(line, ":"); isChain {
			line = "-N " + name
		}
		f := strings.SplitN(line, " ", 3)
		if len(f) < 2 {
			continue
		}
		ours := slices.ContainsFunc(chains, func(c chain) bool { return c.table == table && c.name == f[1] })
		jumps := slices.ContainsFunc(chains, func(c chain) bool {
			return c.table == table && slices.Contains(c.hooks, f[1]) && line == jumpLine(f[1], c.name)
		})
		switch {
		case ours && f[0] == "-N":
			list = append(list, "-N "+f[1])
		case jumps && ahead[f[1]] != "":
			list = append(list, ahead[f[1]], line)
		case jumps, ours && f[0] == "-A":
			list = append(list, line)
		case f[0] == "-A" && mustFollow(table, line):
			ahead[f[1]] = line
		}
	}
	sortByChain(list)
	return list
}

func jumpLine(hook, to string) string { return "-A " + hook + " -j " + to }

// changes returns the input for iptables-restore that makes the kernel hold chains and no
// other rules of an agent. Empty: nothing has to change.
func (s *variantTables) changes(v6 bool, have map[string][]string, chains []chain) string {
	var all strings.Builder
	want, i := agentLines(chains), family(v6)
	for _, table := range tables() {
		asWritten := slices.Equal(want[table], s.written[i][table]) && slices.Equal(have[table], s.printed[i][table])
		if asWritten || slices.Equal(have[table], want[table]) {
			continue
		}
		fmt.Fprintf(&all, "*%s\n", table)
		for _, c := range chains {
			if c.table == table {
				c.writeTo(&all, have[table])
			}
		}
		all.WriteString("COMMIT\n")
	}
	return all.String()
}

// writeTo writes the lines that replace a chain and the jumps to it, or delete them if it should not exist.
func (c *chain) writeTo(text *strings.Builder, have []string) {
	for _, hook := range c.hooks {
		for _, line := range have {
			if line == jumpLine(hook, c.name) {
				fmt.Fprintf(text, "-D %s -j %s\n", hook, c.name)
			}
		}
	}
	if len(c.rules) == 0 {
		if slices.Contains(have, "-N "+c.name) {
			fmt.Fprintf(text, "-F %s\n-X %s\n", c.name, c.name)
		}
		return
	}
	fmt.Fprintf(text, ":%s - [0:0]\n", c.name) // also flushes an existing chain, in the same step
	for _, rule := range c.rules {
		fmt.Fprintf(text, "-A %s %s\n", c.name, rule)
	}
	for _, hook := range c.hooks {
		fmt.Fprintf(text, "-I %s 1 -j %s\n", hook, c.name)
	}
}

// errNotWritten means that the kernel does not hold the rules that were written.
var errNotWritten = errors.New("the rules are missing right after writing: another program may remove them")

// restore writes changes for chains, and checks what the kernel holds then.
func (s *variantTables) restore(ctx context.Context, v6 bool, changes string, chains []chain) error {
	i := family(v6)
	err := s.programs[i].restore(ctx, changes)
	s.readMu.Lock()
	s.last[i].lines = nil
	s.readMu.Unlock()
	if err != nil {
		return fmt.Errorf("writing rules: %w", err)
	}
	have, err := s.read(ctx, v6)
	if err != nil {
		return err
	}
	s.written[i], s.printed[i] = agentLines(chains), have
	for _, table := range tables() {
		if len(have[table]) != len(s.written[i][table]) {
			s.written[i] = nil
			return errNotWritten
		}
	}
	return nil
}

// missingBases returns the tables and built-in chains that iptables-nft will create for
// chains, as "TABLE" and "TABLE/CHAIN". For iptables-legacy it returns none: they could not be deleted.
func (s *variantTables) missingBases(v6 bool, chains []chain) (missing []string, err error) {
	for _, c := range chains {
		if s.nft == nil || len(c.rules) == 0 {
			continue
		}
		for _, hook := range append([]string{""}, c.hooks...) {
			there, err := s.nft.exists(v6, c.table, hook)
			if err != nil {
				return nil, err
			}
			if !there {
				missing = append(missing, strings.TrimSuffix(c.table+"/"+hook, "/"))
			}
		}
	}
	return missing, nil
}

// deleteEmpty deletes the tables and built-in chains in bases that no program uses.
func (s *variantTables) deleteEmpty(v6 bool, bases []string) error {
	if s.nft == nil {
		return nil
	}
	s.readMu.Lock()
	defer s.readMu.Unlock()
	var errs []error
	for _, chains := range []bool{true, false} { // chains before tables
		for _, base := range bases {
			table, name, isChain := strings.Cut(base, "/")
			if isChain == chains {
				errs = append(errs, s.nft.deleteEmpty(v6, table, name))
			}
		}
	}
	return errors.Join(errs...)
}

// hasIPv6 reports whether the kernel supports IPv6.
func hasIPv6(in netns.NsHandle) bool {
	err := inNamespace(in, func() error {
		_, err := os.Stat("/proc/thread-self/net/if_inet6")
		return err
	})
	return !errors.Is(err, os.ErrNotExist)
}

// fingerprint returns a short text for each family. It changes whenever rules are added to
// or removed from our chains or the built-in chains that jump to them. It runs no program.
func (s *variantTables) fingerprint() (marks [2]string, err error) {
	if s.nft != nil {
		return s.nft.fingerprint()
	}
	err = inNamespace(s.namespace, func() (err error) {
		for i := range marks {
			if marks[i], err = dataplane.LegacyFingerprint(i == 1, tables()); err != nil {
				return err
			}
		}
		return nil
	})
	return marks, err
}

// maxReadAge is how long a reading is valid while the fingerprint is the same. After that,
// changes are found that the fingerprint does not show, such as a replaced rule.
const maxReadAge = 30 * time.Second

// read returns the lines of one family that concern the agent, by table. If s.now is set, it returns those of the last read as long
// as the fingerprint is the same, for maxReadAge at most.
func (s *variantTables) read(ctx context.Context, v6 bool) (lines map[string][]string, err error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	marks, err := s.fingerprint()
	if err != nil {
		return nil, fmt.Errorf("reading the tables of iptables-%s: %w", s.variant, err)
	}
	i, now := family(v6), time.Time{}
	last := &s.last[i]
	if s.now != nil {
		now = s.now()
		if last.lines != nil && last.fingerprint == marks[i] && now.Sub(last.at) < maxReadAge {
			return last.lines, nil
		}
	}
	lines = map[string][]string{}
	chains := plan(&rules.Rules{}, v6, false)
	for _, table := range tables() {
		text, err := s.readTable(ctx, v6, table, chains)
		if err != nil {
			return nil, err
		}
		lines[table] = selectLines(table, text, chains)
	}
	last.at, last.fingerprint, last.lines = now, marks[i], lines
	return lines, nil
}

// readTable returns the rules of one table: with iptables-nft only those of chains and of the built-in chains that jump to them,
// 2 ms for each chain, where a table of 20,000 rules takes 160 ms. With iptables-legacy it returns the whole table, which any list
// has to read, by the program -save, because all others wait for the xtables lock.
func (s *variantTables) readTable(ctx context.Context, v6 bool, table string, chains []chain) (lines []string, err error) {
	p := s.program(v6)
	if p == nil {
		return nil, nil
	}
	if s.nft == nil {
		var names []string
		err := inNamespace(s.namespace, func() (err error) {
			names, err = dataplane.LegacyTables(v6)
			return err
		})
		if err != nil || !slices.Contains(names, table) {
			return nil, err
		}
		return p.save(ctx, table)
	}
	for _, c := range chains {
		if c.table != table {
			continue
		}
		for _, name := range append([]string{c.name}, c.hooks...) {
			more, err := s.list(p, table, name)
			if err != nil {
				return nil, fmt.Errorf("listing chain %s: %w", name, err)
			}
			lines = append(lines, more...)
		}
	}
	return lines, nil
}

// list lists a chain of iptables-nft, if it exists.
func (s *variantTables) list(p *program, table, name string) ([]string, error) {
	if there, err := s.nft.exists(p.v6, table, name); err != nil || !there {
		return nil, err
	}
	lines, err := p.list(table, name)
	if err != nil {
		if there, _ := s.nft.exists(p.v6, table, name); !there {
			return nil, nil // it was deleted meanwhile
		}
	}
	return lines, err
}

// countRules returns the number of rules in the agent's chains, and of jumps to them.
func countRules(lines map[string][]string) (n int) {
	for table, list := range lines {
		for _, line := range list {
			if strings.HasPrefix(line, "-A ") && !mustFollow(table, line) {
				n++
			}
		}
	}
	return n
}

// fallbackTargets returns the DNAT targets of link-local rules. It skips the DNAT rules of transparent
// mode: they match a lease, so their target is the agent.
func fallbackTargets(lines map[string][]string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, line := range lines["nat"] {
		_, text, _ := strings.Cut(line, "--to-destination ")
		target, err := netip.ParseAddrPort(strings.TrimSpace(text))
		if err == nil && !strings.Contains(line, "--match-set") && !slices.Contains(list, target) {
			list = append(list, target)
		}
	}
	return list
}

// family returns the array index of a family.
func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}
