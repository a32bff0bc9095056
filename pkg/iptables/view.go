// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A place is a chain, one of ours or a built-in one.
type chainID struct{ table, chain string }

// A content is what the kernel holds of one family: the rules of our chains and of the
// built-in chains that we hang on, as iptables prints them, less "-A NAME ". A chain
// that is not there is not in it.
type content map[chainID][]string

// read lists one family.
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
				return nil, fmt.Errorf("looking for chain %s: %w", name, err)
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

// readTable lists chains of one table. With iptables-nft a chain costs 2 ms, whatever
// else is there, and a table of 20,000 rules 160; with iptables-legacy any list costs
// that of the whole table, and but for -save it waits for the lock.
func (s *variantTables) readTable(ctx context.Context, p *program, table string, names []string, have content) error {
	if s.variant == Legacy {
		lines, err := p.save(ctx, table, false)
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
				continue // it went meanwhile
			}
			return fmt.Errorf("listing chain %s: %w", name, err)
		}
		have.add(table, lines, names)
	}
	return nil
}

// add reads what iptables -S or iptables-save printed.
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
				c[at] = []string{} // it is there, if empty
			}
		case "-A":
			c[at] = append(c[at], rule)
		}
	}
}

// count is the number of rules of ours, with the jumps to them.
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

// jumps are the positions of jumps to a chain of ours.
func jumps(hook []string, to string) (at []int) {
	for i, rule := range hook {
		if rule == "-j "+to {
			at = append(at, i)
		}
	}
	return at
}

// fallback are the targets of the rules in link-local mode: a transparent mode's only
// match while the lease is held.
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

// A look is what was found of one family at one time.
type reading struct {
	fingerprint string // the kernel's fingerprint from before the family was listed
	at          time.Time
	content     content
}

// fullLook is how long a look is good while the kernel's fingerprint is the same: what
// that does not show, one rule put for another, is found after that.
const maxReadAge = 30 * time.Second

// look lists a family, or says again what was found the last time, if nothing changed
// since. Without now it always lists.
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

// family is the index of a family where there are two of something.
func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}
