// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A stack is one variant: its programs and the kernel's tables of it.
type variantTables struct {
	variant  Variant
	programs [2]*program // of IPv4 and of IPv6; the latter may be nil
	kernel   kernelTables
	readLock semaphore
	lastRead [2]atomic.Pointer[reading] // of IPv4 and of IPv6

	mu       sync.Mutex        // guards accepted
	accepted map[string]string // how the kernel prints a chain that we wrote, if not as we did
}

// acceptedMax is of how many chains the stack knows other words: those of both families,
// with the former ones of some lists of the fallback.
const maxAccepted = 64

// A turn is one goroutine's at a time.
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

// openStack finds what a variant needs. Without IPv6 it is good enough.
func openTables(variant Variant, wait time.Duration, in *netns) (*variantTables, error) {
	s := &variantTables{variant: variant, readLock: newSemaphore(), accepted: map[string]string{}}
	var err error
	if s.programs[0], err = findProgram(variant, false, wait, in); err != nil {
		return nil, err
	}
	if s.programs[1], err = findProgram(variant, true, wait, in); err != nil {
		s.programs[1] = nil // Apply says so, if it is needed
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

// changes is what iptables-restore has to be told so that the kernel holds chains and
// no other rules of ours. Empty: it does.
func (s *variantTables) changes(have content, chains []chain) string {
	var all strings.Builder
	for _, table := range tables() {
		var lines, removals []string
		for _, c := range chains {
			if c.table != table {
				continue
			}
			if len(c.rules) > 0 {
				lines = append(lines, s.chainChanges(have, c)...)
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

// chainChanges are the lines that make a chain and the jumps to it right.
func (s *variantTables) chainChanges(have content, c chain) []string {
	var lines []string
	if there, ok := have[chainID{c.table, c.name}]; !ok || !s.same(there, c.rules) {
		lines = append(lines, ":"+c.name+" - [0:0]") // empties it too, within the same step
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

// withdraw are the lines that remove the jumps to a chain.
func removeJumps(have content, c chain) []string {
	var lines []string
	for _, hook := range c.hooks {
		for range jumps(have[chainID{c.table, hook}], c.name) {
			lines = append(lines, "-D "+hook+" -j "+c.name)
		}
	}
	return lines
}

// behind says that a jump is where kube-proxy decides first. It puts its own jump in
// front when that is missing, and never again while it is there, so that both come to
// rest. Elsewhere the place is not fought for: there are programs, Calico's for one,
// that always want to be the first, and a rule before ours that drops is somebody's will.
func isBehindKubeProxy(table string, hook []string, at int) bool {
	return table == "nat" && slices.ContainsFunc(hook[:at], func(rule string) bool {
		return strings.HasSuffix(rule, "-j KUBE-SERVICES")
	})
}

// same says whether a chain holds the rules that we want, maybe in other words.
func (s *variantTables) same(have, want []string) bool {
	if slices.Equal(have, want) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	printed, ok := s.accepted[strings.Join(want, "\n")]
	return ok && printed == strings.Join(have, "\n")
}

// accept takes what the kernel prints of chains that were just written for what was
// meant: another version of iptables may use other words.
func (s *variantTables) accept(have content, chains []chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chains {
		there := have[chainID{c.table, c.name}]
		if len(c.rules) == 0 || len(there) != len(c.rules) || slices.Equal(there, c.rules) {
			continue
		}
		if len(s.accepted) >= maxAccepted {
			clear(s.accepted) // a chain that is still in use is written once more
		}
		s.accepted[strings.Join(c.rules, "\n")] = strings.Join(there, "\n")
	}
}

// errWritten says that the kernel does not hold what it was told to.
var errNotWritten = errors.New("the rules are not there after they were written: another program may remove them")

// write makes the kernel hold chains, and says whether that changed anything. Before it
// does, it calls first.
func (s *variantTables) write(ctx context.Context, v6 bool, chains []chain, first func() error, now func() time.Time) (changed bool, err error) {
	have, err := s.cachedRead(ctx, v6, now)
	if err != nil {
		return false, err
	}
	changes := s.changes(have, chains)
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
	s.accept(have, chains)
	if s.changes(have, chains) != "" {
		return true, errNotWritten
	}
	return true, nil
}

// bases are the tables and built-in chains that iptables-nft would make for chains,
// as "TABLE" and "TABLE/CHAIN". Those of iptables-legacy come by themselves and cannot go.
func (s *variantTables) bases(v6 bool, chains []chain) ([]string, error) {
	k, ok := s.kernel.(*nftKernel)
	if !ok {
		return nil, nil
	}
	var list []string
	add := func(name string, there bool) {
		if !there && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	for _, c := range chains {
		if len(c.rules) == 0 {
			continue
		}
		there, err := k.tableExists(v6, c.table)
		if err != nil {
			return nil, err
		}
		add(c.table, there)
		for _, hook := range c.hooks {
			if there, err = k.chainExists(v6, c.table, hook); err != nil {
				return nil, err
			}
			add(c.table+"/"+hook, there)
		}
	}
	return list, nil
}

// forget removes bases that nobody uses.
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
	for _, chains := range []bool{true, false} { // and then tables
		for _, base := range bases {
			table, name, isChain := strings.Cut(base, "/")
			if isChain == chains {
				errs = append(errs, k.deleteEmpty(v6, table, name))
			}
		}
	}
	return errors.Join(errs...)
}

// hasIPv6 says whether the kernel speaks IPv6 at all.
func hasIPv6(in *netns) bool {
	err := in.do(func() error {
		_, err := os.Stat("/proc/thread-self/net/if_inet6")
		return err
	})
	return !errors.Is(err, os.ErrNotExist)
}
