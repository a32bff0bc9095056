// SPDX-License-Identifier: Apache-2.0

package localdata_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/localdata"
)

func run(t *testing.T, s *localdata.Data) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Hosts().Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestFollow creates, writes, replaces, removes and truncates a file.
func TestFollow(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "hosts")
	var changes atomic.Int32
	s := newLocalData(t, localdata.Config{
		Files: []string{path}, Names: map[string][]netip.Addr{"own.test": addrs("192.0.2.99")}, Changed: func() { changes.Add(1) },
	})
	assert.Equal(t, "calls of Changed before Run", 0, changes.Load())
	run(t, s)
	is := func(addr string) func() bool {
		return func() bool { return query(t, s, "a.test.", dns.TypeA) == "NOERROR| a.test. 30 A "+addr }
	}
	write(t, path, "192.0.2.1 a.test\n")
	proctest.Eventually(t, time.Minute, "created", is("192.0.2.1"))
	write(t, path, "192.0.2.2 a.test\n")
	proctest.Eventually(t, time.Minute, "written in place", is("192.0.2.2"))
	write(t, path+".new", "192.0.2.3 a.test\n")
	assert.NoError(t, os.Rename(path+".new", path))
	proctest.Eventually(t, time.Minute, "replaced", is("192.0.2.3"))
	assert.NoError(t, os.Remove(path))
	proctest.Eventually(t, time.Minute, "reported missing", func() bool { return s.Stats().Files[0].LastError != "" })
	if !is("192.0.2.3")() {
		t.Error("the content was dropped with the file")
	}
	write(t, path, "192.0.2.4 a.test\n")
	proctest.Eventually(t, time.Minute, "back", is("192.0.2.4"))
	proctest.Eventually(t, time.Minute, "no error", func() bool { return s.Stats().Files[0].LastError == "" })
	write(t, path, "")
	proctest.Eventually(t, time.Minute, "empty", func() bool { return query(t, s, "a.test.", dns.TypeA) == "none" })
	if got := query(t, s, "own.test.", dns.TypeA); got != "NOERROR| own.test. 30 A 192.0.2.99" {
		t.Error(got)
	}
	proctest.Eventually(t, time.Minute, "Changed called for each content", func() bool { return int(changes.Load()) == int(s.Stats().Files[0].Reads) })
	if got := s.Stats().Files[0].Reads; got < 5 || got > 6 {
		t.Errorf("%d contents loaded, want 5 or 6", got)
	}
}

// TestFollowLinks changes a file as the kubelet changes those of a ConfigMap volume.
func TestFollowLinks(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	version := func(name, text string) {
		assert.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
		write(t, filepath.Join(folder, name, "hosts"), text)
		assert.NoError(t, os.Symlink(name, filepath.Join(folder, "..data_tmp")))
		assert.NoError(t, os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
	}
	version("..1", "192.0.2.1 a.test\n")
	assert.NoError(t, os.Symlink("..data/hosts", filepath.Join(folder, "hosts")))
	s := newLocalData(t, localdata.Config{Files: []string{filepath.Join(folder, "hosts")}})
	if got := query(t, s, "a.test.", dns.TypeA); got != "NOERROR| a.test. 30 A 192.0.2.1" {
		t.Error(got)
	}
	run(t, s)
	version("..2", "192.0.2.2 a.test\n")
	proctest.Eventually(t, time.Minute, "the new version", func() bool { return query(t, s, "a.test.", dns.TypeA) == "NOERROR| a.test. 30 A 192.0.2.2" })
}
