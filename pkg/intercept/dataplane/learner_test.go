// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
)

// TestLearner writes the table of a policy engine that learns names, as the engine does at its start and every 30 s, and other tables.
func TestLearner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("writing tables needs root")
	}
	host, err := (&nodetest.Network{}).NewHost("node")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = host.Close() })
	has := func() (has bool) {
		assert.NoError(t, host.Do(func() (err error) {
			has, err = dataplane.HasLearner()
			return err
		}))
		return has
	}
	write := func(name string) {
		assert.NoError(t, host.Do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
			conn.AddTable(table)
			conn.DelTable(table)
			conn.AddTable(table)
			conn.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityLast})
			return conn.Flush()
		}))
	}
	const engine = "kube-network-policies-dnscache"
	write("kube-network-policies")
	assert.Equal(t, "learns names, by a table of another name", false, has())
	write(engine)
	assert.Equal(t, "learns names", true, has())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, ended := make(chan bool, 100), make(chan error, 1)
	go func() {
		ended <- host.Do(func() error { return dataplane.WatchLearner(ctx, func() { began <- true }) })
	}()
	await := func(when string) {
		t.Helper()
		select {
		case <-began:
		case <-time.After(time.Minute):
			t.Fatal("not called " + when)
		}
	}
	await("at the begin")
	for range 3 {
		write("other")
	}
	write(engine)
	await("when the engine has started")
	cancel()
	assert.NoError(t, <-ended)
	if n := len(began); n > 1 { // a second time for the table before it was removed
		t.Errorf("called %d times more: for another table?", n)
	}
}
