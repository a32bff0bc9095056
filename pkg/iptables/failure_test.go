// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestOneFamilyFails: without ip6tables the rules of IPv4 are written, and the error names the missing program.
func TestOneFamilyFails(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			b.own.programs[1] = nil
			changed, err := b.Apply(t.Context(), linkLocal())
			if !changed || err == nil || !strings.Contains(err.Error(), "ip6tables is not installed") {
				t.Errorf("changed %t, error %v; want the missing program named", changed, err)
			}
			if out := run(t, hosts, "iptables-"+string(v)+"-save"); strings.Count(out, "-j NODE-CACHE-") != 7 {
				t.Errorf("the rules of IPv4 are not there:\n%s", out)
			}
			only4 := linkLocal()
			only4.Addresses, only4.Fallback = only4.Addresses[:1], only4.Fallback[:3]
			if changed, err := b.Apply(t.Context(), only4); changed || err != nil {
				t.Errorf("rules of IPv4 only: changed %t, error %v; want neither", changed, err)
			}
		})
	}
}

// TestLockFileCannotBeMade: on a read-only root the lock file cannot be created at its usual path.
func TestLockFileCannotBeMade(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	b := open(t, hosts, Config{Variant: Legacy, Now: time.Now})
	for _, p := range b.own.programs {
		p.env = []string{"XTABLES_LOCKFILE=/proc/no/xtables.lock"}
	}
	_, err := b.Apply(t.Context(), linkLocal())
	if err == nil || !strings.Contains(err.Error(), "XTABLES_LOCKFILE") {
		t.Errorf("error %v, want it to say where else the lock may be", err)
	}
	if err := b.Renew(t.Context(), linkLocal().Addresses, time.Minute); err != nil {
		t.Errorf("renewing: %v", err)
	}
}

// TestOtherVariantStaysUntilReplaced: the rules of the predecessor in the other variant are removed once the rules of this agent
// are written, not before.
func TestOtherVariantStaysUntilReplaced(t *testing.T) {
	t.Parallel()
	hosts, predecessor := openNode(t, Nft)
	apply(t, predecessor, linkLocal())
	b := open(t, hosts, Config{Variant: Legacy, Now: time.Now, LockWait: time.Second})
	release := lock(t, hosts)
	if _, err := b.Apply(t.Context(), linkLocal()); !errors.Is(err, ErrLocked) {
		t.Errorf("error %v, want ErrLocked", err)
	}
	if out := run(t, hosts, "iptables-nft-save"); strings.Count(out, "-j NODE-CACHE-") != 7 {
		t.Errorf("the predecessor's rules are gone before there are others:\n%s", out)
	}
	release()
	apply(t, b, linkLocal())
	if out := run(t, hosts, "iptables-nft-save"); strings.Contains(out, "NODE-CACHE") {
		t.Errorf("the predecessor's rules are still there:\n%s", out)
	}
}

// TestForeignSet: a different set with the name of ours stays, and the error names it.
func TestForeignSet(t *testing.T) {
	t.Parallel()
	hosts, b := openNode(t, Nft)
	run(t, hosts, "ipset create node-cache-lease4 hash:net")
	_, err := b.Apply(t.Context(), linkLocal())
	if err == nil || !strings.Contains(err.Error(), "run `ipset destroy node-cache-lease4`") {
		t.Errorf("error %v, want the set named", err)
	}
	if out := run(t, hosts, "ip6tables-nft-save"); !strings.Contains(out, "NODE-CACHE") {
		t.Errorf("the rules of IPv6 are not there:\n%s", out)
	}
}

func TestNewRefusesAnOddVariant(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	err := hosts.Node.Do(func() error {
		_, err := New(Config{Variant: "odd"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), `variant "odd"`) {
		t.Errorf("error %v, want the variant named", err)
	}
}
