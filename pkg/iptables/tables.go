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
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A variantTables is one variant: its programs and its tables in the kernel.
type variantTables struct {
	variant  Variant
	programs [2]*program // of IPv4 and of IPv6; the latter may be nil
	kernel   kernelTables
	readLock semaphore
	lastRead [2]atomic.Pointer[reading] // of IPv4 and of IPv6

	// The chains of the last write, and how iptables printed them right after it. Versions of
	// iptables print some rules in other words. Guarded by Backend.writeLock.
	written [2][]chain
	printed [2]content
}

// A semaphore is a mutex whose wait ends with a context.
type semaphore chan struct{}

func newSemaphore() semaphore { return make(semaphore, 1) }

func (s semaphore) enter(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s semaphore) leave() { <-s }

// openTables opens a variant. IPv6 is optional.
func openTables(variant Variant, wait time.Duration, in netns.NsHandle) (*variantTables, error) {
	s := &variantTables{variant: variant, readLock: newSemaphore()}
	var err error
	if s.programs[0], err = findProgram(variant, false, wait, in); err != nil {
		return nil, err
	}
	if s.programs[1], err = findProgram(variant, true, wait, in); err != nil {
		s.programs[1] = nil // Apply returns an error if it is needed
	}
	if variant == Legacy {
		s.kernel, err = openLegacy(in)
	} else {
		s.kernel, err = openNft()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *variantTables) program(v6 bool) *program {
	return s.programs[family(v6)]
}

// changes returns the input for iptables-restore that makes the kernel hold chains and no
// other rules of an agent. Empty: nothing has to change.
func (s *variantTables) changes(v6 bool, have content, chains []chain) string {
	var all strings.Builder
	for _, table := range tables() {
		var lines, removals []string
		for _, c := range chains {
			if c.table != table {
				continue
			}
			if len(c.rules) > 0 {
				lines = append(lines, s.chainChanges(v6, have, c)...)
			} else if _, there := have[chainID{table, c.name}]; there {
				lines = append(lines, removeJumps(have, c)...)
				removals = append(removals, "-F "+c.name, "-X "+c.name)
			}
		}
		if lines = append(lines, removals...); len(lines) > 0 {
			fmt.Fprintf(&all, "*%s\n%s\nCOMMIT\n", table, strings.Join(lines, "\n"))
		}
	}
	return all.String()
}

// chainChanges returns the lines that correct a chain and the jumps to it.
func (s *variantTables) chainChanges(v6 bool, have content, c chain) []string {
	var lines []string
	if there, ok := have[chainID{c.table, c.name}]; !ok || !s.same(v6, there, c) {
		lines = append(lines, ":"+c.name+" - [0:0]") // also flushes it, in the same step
		for _, rule := range c.rules {
			lines = append(lines, "-A "+c.name+" "+rule)
		}
	}
	for _, hook := range c.hooks {
		rules := have[chainID{c.table, hook}]
		if at := jumps(rules, c.name); len(at) == 1 && !isBehindKubeProxy(c.table, rules, at[0]) {
			continue
		}
		lines = append(lines, removeJumps(have, chain{table: c.table, name: c.name, hooks: []string{hook}})...)
		lines = append(lines, "-I "+hook+" 1 -j "+c.name)
	}
	return lines
}

// removeJumps returns the lines that remove the jumps to a chain.
func removeJumps(have content, c chain) []string {
	var lines []string
	for _, hook := range c.hooks {
		for range jumps(have[chainID{c.table, hook}], c.name) {
			lines = append(lines, "-D "+hook+" -j "+c.name)
		}
	}
	return lines
}

// isBehindKubeProxy reports whether kube-proxy's jump comes first. kube-proxy inserts its
// jump at the front only if it is missing, so both programs settle. In other tables the
// position does not matter: programs such as Calico always insert at the front, and an
// earlier rule that drops is intended.
func isBehindKubeProxy(table string, hook []string, at int) bool {
	return table == "nat" && slices.ContainsFunc(hook[:at], func(rule string) bool {
		return strings.HasSuffix(rule, "-j KUBE-SERVICES")
	})
}

// same reports whether a chain holds the wanted rules, possibly printed in other words.
func (s *variantTables) same(v6 bool, have []string, want chain) bool {
	if slices.Equal(have, want.rules) {
		return true
	}
	i := family(v6)
	return len(have) == len(want.rules) && slices.Equal(have, s.printed[i][chainID{want.table, want.name}]) &&
		slices.ContainsFunc(s.written[i], func(c chain) bool {
			return c.table == want.table && c.name == want.name && slices.Equal(c.rules, want.rules)
		})
}

// errNotWritten means that the kernel does not hold the rules that were written.
var errNotWritten = errors.New("the rules are missing right after writing: another program may remove them")

// write makes the kernel hold chains and reports whether anything changed. It calls first
// before a change.
func (s *variantTables) write(ctx context.Context, v6 bool, chains []chain, first func() error, now func() time.Time) (changed bool, err error) {
	have, err := s.cachedRead(ctx, v6, now)
	if err != nil {
		return false, err
	}
	changes := s.changes(v6, have, chains)
	if changes == "" {
		return false, nil
	}
	if err := first(); err != nil {
		return false, err
	}
	err = s.program(v6).restore(ctx, changes)
	s.lastRead[family(v6)].Store(nil)
	if err != nil {
		return false, fmt.Errorf("writing rules: %w", err)
	}
	if have, err = s.cachedRead(ctx, v6, now); err != nil {
		return true, err
	}
	s.written[family(v6)], s.printed[family(v6)] = chains, have
	if s.changes(v6, have, chains) != "" {
		return true, errNotWritten
	}
	return true, nil
}

// missingBases returns the tables and built-in chains that iptables-nft will create for
// chains, as "TABLE" and "TABLE/CHAIN". Those of iptables-legacy cannot be deleted.
func (s *variantTables) missingBases(v6 bool, chains []chain) (missing []string, err error) {
	k, ok := s.kernel.(*nftKernel)
	if !ok {
		return nil, nil
	}
	for _, c := range chains {
		if len(c.rules) == 0 {
			continue
		}
		if there, err := k.tableExists(v6, c.table); err != nil {
			return nil, err
		} else if !there {
			missing = append(missing, c.table)
		}
		for _, hook := range c.hooks {
			if there, err := k.chainExists(v6, c.table, hook); err != nil {
				return nil, err
			} else if !there {
				missing = append(missing, c.table+"/"+hook)
			}
		}
	}
	return missing, nil
}

// deleteEmpty deletes bases that no program uses.
func (s *variantTables) deleteEmpty(ctx context.Context, v6 bool, bases []string) error {
	k, ok := s.kernel.(*nftKernel)
	if !ok || len(bases) == 0 {
		return nil
	}
	if err := s.readLock.enter(ctx); err != nil {
		return err
	}
	defer s.readLock.leave()
	var errs []error
	for _, chains := range []bool{true, false} { // chains before tables
		for _, base := range bases {
			table, name, isChain := strings.Cut(base, "/")
			if isChain == chains {
				errs = append(errs, k.deleteEmpty(v6, table, name))
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

// A chainID identifies a chain of the agent or a built-in one.
type chainID struct{ table, chain string }

// A content has the rules of one family in the kernel: those of the agent's chains and of
// the built-in chains that jump to them, as iptables prints them, without "-A NAME ". It
// has no entry for a chain that does not exist.
type content map[chainID][]string

// read lists the rules of one family.
func (s *variantTables) read(ctx context.Context, v6 bool) (content, error) {
	p, have := s.program(v6), content{}
	if p == nil {
		return have, nil
	}
	wanted := map[string][]string{}
	for _, c := range plan(&rules.Rules{}, v6, false) {
		for _, name := range append([]string{c.name}, c.hooks...) {
			there, err := s.kernel.chainExists(v6, c.table, name)
			if err != nil {
				return nil, fmt.Errorf("reading chain %s: %w", name, err)
			}
			if there && !slices.Contains(wanted[c.table], name) {
				wanted[c.table] = append(wanted[c.table], name)
			}
		}
	}
	for table, names := range wanted {
		if err := s.readTable(ctx, p, table, names, have); err != nil {
			return nil, err
		}
	}
	return have, nil
}

// readTable lists chains of one table. With iptables-nft a chain takes 2 ms, regardless of
// other chains, and a table of 20,000 rules 160 ms. With iptables-legacy each list reads
// the whole table, and all but -save wait for the lock.
func (s *variantTables) readTable(ctx context.Context, p *program, table string, names []string, have content) error {
	if s.variant == Legacy {
		lines, err := p.save(ctx, table)
		have.add(table, lines, names)
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		lines, err := p.list(table, name)
		if err != nil {
			if there, _ := s.kernel.chainExists(p.v6, table, name); !there {
				continue // it was deleted meanwhile
			}
			return fmt.Errorf("listing chain %s: %w", name, err)
		}
		have.add(table, lines, names)
	}
	return nil
}

// add parses the output of iptables -S or iptables-save.
func (c content) add(table string, lines, names []string) {
	for _, line := range lines {
		kind, rest, _ := strings.Cut(line, " ")
		if strings.HasPrefix(line, ":") {
			kind, rest = "-N", line[1:]
		}
		name, rule, _ := strings.Cut(rest, " ")
		if !slices.Contains(names, name) {
			continue
		}
		at := chainID{table, name}
		switch kind {
		case "-N", "-P":
			if c[at] == nil {
				c[at] = []string{} // it exists but may be empty
			}
		case "-A":
			c[at] = append(c[at], rule)
		}
	}
}

// count returns the number of rules in the agent's chains, and of jumps to them.
func (c content) count(v6 bool) int {
	n := 0
	for _, ours := range plan(&rules.Rules{}, v6, false) {
		n += len(c[chainID{ours.table, ours.name}])
		for _, hook := range ours.hooks {
			n += len(jumps(c[chainID{ours.table, hook}], ours.name))
		}
	}
	return n
}

// jumps returns the positions of jumps to a chain.
func jumps(hook []string, to string) (at []int) {
	for i, rule := range hook {
		if rule == "-j "+to {
			at = append(at, i)
		}
	}
	return at
}

// fallback returns the targets of link-local rules. Those of transparent rules match only
// with a lease.
func (c content) fallback() []netip.AddrPort {
	var list []netip.AddrPort
	for _, rule := range c[chainID{"nat", "NODE-CACHE-DNAT"}] {
		_, text, _ := strings.Cut(rule, "--to-destination ")
		target, err := netip.ParseAddrPort(strings.TrimSpace(text))
		if err == nil && !strings.Contains(rule, "--match-set") && !slices.Contains(list, target) {
			list = append(list, target)
		}
	}
	return list
}

// A reading is the content of one family at one time.
type reading struct {
	fingerprint string // read before the content
	at          time.Time
	content     content
}

// maxReadAge is how long a reading is valid while the fingerprint is the same. After that,
// changes are found that the fingerprint does not show, such as a replaced rule.
const maxReadAge = 30 * time.Second

// cachedRead reads a family, or returns the last reading if nothing has changed since.
// Without now it always reads.
func (s *variantTables) cachedRead(ctx context.Context, v6 bool, now func() time.Time) (content, error) {
	if err := s.readLock.enter(ctx); err != nil {
		return nil, err
	}
	defer s.readLock.leave()
	marks, err := s.kernel.fingerprint()
	if err != nil {
		return nil, fmt.Errorf("reading the tables of iptables-%s: %w", s.variant, err)
	}
	i := family(v6)
	current := &reading{fingerprint: marks[i]}
	if now != nil {
		current.at = now()
		if last := s.lastRead[i].Load(); last != nil && last.fingerprint == current.fingerprint && current.at.Sub(last.at) < maxReadAge {
			return last.content, nil
		}
	}
	if current.content, err = s.read(ctx, v6); err != nil {
		return nil, err
	}
	s.lastRead[i].Store(current)
	return current.content, nil
}

// family returns the array index of a family.
func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}
