// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestSmallCluster measures a small cluster with real programs. It looks at no time and no cost, but at what has to be so
// on any machine.
func TestSmallCluster(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"dnsperf", "cc"} {
		if _, err := proctest.LookProgram(program); err != nil {
			t.Skip(err)
		}
	}
	if err := needTwoCPUs(); err != nil {
		t.Skip(err)
	}
	binary := os.Getenv(proctest.BinaryEnv)
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "node-cache")
		assert.NoError(t, proctest.Build(binary))
	}
	opts := options{
		section: clusterSection, services: 100, seconds: 1, rounds: 1, events: 3, churn: 2 * time.Second, rate: 100,
		only: []string{"agent-headless", "coredns"}, nodeCache: binary,
	}
	var progress bytes.Buffer
	measured, err := measureCluster(t.Context(), opts, &progress)
	defer func() {
		if t.Failed() {
			t.Logf("progress:\n%s", progress.String())
		}
	}()
	assert.NoError(t, err)
	rep, ok := measured.(*clusterReport)
	if !ok || len(rep.rows) != 2 || len(rep.costs) != 2 || rep.changes != 200 {
		t.Fatalf("got %+v, want 2 rows, 2 costs and 200 changes", rep)
	}
	for _, r := range rep.rows {
		checkResult(t, r)
	}
	for _, b := range rep.costs {
		if b.skipped != "" || b.sync.ToClient < kubetest.Handshake || b.churn.ToClient < kubetest.Handshake || len(b.syncTally) == 0 || b.mib <= 0 {
			t.Errorf("cost %+v, want bytes, requests and memory", b)
		}
	}
}

func checkResult(t *testing.T, r *clusterResult) {
	t.Helper()
	l, ok := r.medianStart()
	if !ok || l.first <= 0 || l.ready < l.first || l.peak <= 0 || l.rest <= 0 || l.loaded <= 0 {
		t.Errorf("%s: start %+v, want each moment and memory; notes %q", r.Name, l, r.Notes)
	}
	for name, shots := range r.Samples { // a busy machine may leave too little CPU for some
		for _, s := range shots {
			if s.Wrong != 0 {
				t.Errorf("%s: load %s: %d wrong answers", r.Name, name, s.Wrong)
			}
		}
	}
	if r.events == nil || len(r.events.latencies) != 3 {
		t.Fatalf("%s: events %+v, want 3; notes %q", r.Name, r.events, r.Notes)
	}
	if r.ours && (r.events.older != 0 || r.events.wrong != 0) {
		t.Errorf("%s: %d older and %d wrong answers, want none", r.Name, r.events.older, r.events.wrong)
	}
}
