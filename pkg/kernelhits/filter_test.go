// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestFiltersOfSeveralAgents attaches the filters of agents that replace each other.
func TestFiltersOfSeveralAgents(t *testing.T) {
	lo := nodetest.EnterNamespace(t).Attrs().Index
	first, second := open(t, nil), open(t, nil)
	attach := func(k *Responder) *filter {
		f, err := attachFilter(lo, k.objects.AnswerHit, netlink.HANDLE_MIN_INGRESS)
		assert.NoError(t, err)
		return f
	}
	state := func() (filters int, qdisc bool) {
		agents, _, err := filtersAt(lo, netlink.HANDLE_MIN_INGRESS)
		assert.NoError(t, err)
		return len(agents), hasClsact(t, lo)
	}
	expect := func(when string, filters int, qdisc bool) {
		t.Helper()
		gotFilters, gotQdisc := state()
		assert.Equal(t, "filters "+when, filters, gotFilters)
		assert.Equal(t, "a clsact qdisc "+when, qdisc, gotQdisc)
	}
	f := attach(first)
	expect("of the first agent", 1, true)
	g := attach(second)
	expect("of the second agent", 1, true)
	assert.Equal(t, "problem of the first", problemDetached, f.problem())
	assert.Equal(t, "problem of the second", "", g.problem())
	if err := f.detach(); err == nil {
		t.Error("the first agent detached its filter, which the second one had removed")
	}
	expect("after the end of the first", 1, true)
	assert.NoError(t, g.detach())
	expect("after the end of both", 0, false)

	assert.NoError(t, netlink.QdiscAdd(clsactOf(lo)))
	assert.NoError(t, attach(first).detach())
	expect("where another program added the qdisc", 0, true)
	assert.NoError(t, netlink.QdiscDel(clsactOf(lo)))

	f = attach(first)
	foreign := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: lo, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: 3},
		Fd:          first.objects.PermitClient.FD(), Name: "cni", DirectAction: true,
	}
	assert.NoError(t, netlink.FilterAdd(foreign))
	assert.NoError(t, f.detach())
	expect("where another program has a filter", 0, true)

	attach(first) // it is killed
	removed, err := Cleanup()
	assert.NoError(t, err)
	assert.Same(t, "removed", []string{"filters on lo"}, removed)
	expect("after a cleanup beside another program", 0, true)
	assert.NoError(t, netlink.FilterDel(foreign))
	attach(first)
	_, err = Cleanup()
	assert.NoError(t, err)
	expect("after a cleanup", 0, false)
	removed, err = Cleanup()
	assert.NoError(t, err)
	assert.Same(t, "removed again", nil, removed)
}

func hasClsact(t *testing.T, index int) bool {
	t.Helper()
	list, err := netlink.QdiscList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	assert.NoError(t, err)
	return slices.ContainsFunc(list, func(q netlink.Qdisc) bool { return q.Type() == "clsact" })
}
