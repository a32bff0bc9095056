// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"net/http"
	"path/filepath"
	"testing"
	"unsafe"
)

// startStackOf lays out a stack as the kernel does.
func startStackOf(args, environ []string) *startStack {
	stack, at := new(startStack), 1
	stack[0] = (*byte)(unsafe.Add(nil, len(args))) //nolint:gosec // a number, as on a real stack
	for _, list := range [][]string{args, environ} {
		for _, text := range list {
			stack[at] = unsafe.StringData(text + "\x00")
			at++
		}
		at++
	}
	return stack
}

func TestProbeRequest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args, environ                   []string
		wantRequest, wantSays, wantPath string
	}{
		{[]string{"/node-cache", "ready"}, []string{"PATH=/bin", "NODE_CACHE_ADMIN=unix:/run/pod/admin.sock"}, "GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n", "ready\n", "/run/pod/admin.sock"},
		{[]string{"/node-cache", "ready", "--live"}, []string{"NODE_CACHE_ADMIN=unix:/a"}, "GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n", "live\n", "/a"},
		{[]string{"/node-cache", "ready", "--help"}, []string{"NODE_CACHE_ADMIN=127.0.0.1:9253"}, "", "", ""},
		{[]string{"/node-cache", "ready", "--live", "-o", "json"}, []string{"NODE_CACHE_ADMIN=unix:a"}, "", "", ""},
		{[]string{"/node-cache", "readyz"}, []string{"XNODE_CACHE_ADMIN=unix:/a"}, "", "", ""},
		{[]string{"/node-cache", "read"}, []string{"NODE_CACHE_ADMIN"}, "", "", ""},
		{[]string{"/node-cache"}, nil, "", "", ""},
		{nil, []string{"ready", "ready"}, "", "", ""},
	} {
		stack := startStackOf(tt.args, tt.environ)
		request, says := probeRequest(stack)
		path := ""
		if p := environment(stack, "NODE_CACHE_ADMIN=unix:/"); p != nil {
			path = "/"
			for ; *p != 0; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
				path += string(*p)
			}
		}
		if request != tt.wantRequest || says != tt.wantSays || path != tt.wantPath {
			t.Errorf("%q, %q: got %q, %q, %q", tt.args, tt.environ, request, says, path)
		}
	}
}

// TestEntryAllocations: the heap does not exist yet.
func TestEntryAllocations(t *testing.T) { //nolint:paralleltest // it counts
	path := unsafe.StringData(filepath.Join(t.TempDir(), "none") + "\x00")
	stack := startStackOf([]string{"node-cache", "ready"}, []string{"NODE_CACHE_ADMIN=unix:/a"})
	if got := testing.AllocsPerRun(1, func() {
		_ = accepts(path, "")
		_, _ = probeRequest(stack)
		_ = environment(stack, "NODE_CACHE_ADMIN=unix:/")
	}); got != 0 {
		t.Errorf("%.0f allocations, want none", got)
	}
}

// FuzzAcceptance has net/http judge what the entry takes for a yes.
func FuzzAcceptance(f *testing.F) {
	for _, reply := range []string{acceptance, "HTTP/1.0 204 OK\r\n", "HTTP/1.0 200 ok\r\n", "HTTP/1.0 503 Service", "\x00", "HTTP/1.0 2000 O\r\n"} {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		got := isAcceptance((*[len(acceptance)]byte)(append(reply, make([]byte, len(acceptance))...)))
		line, _, _ := bytes.Cut(reply, []byte("\n"))
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(append(bytes.Clone(line), "\n\r\n"...))), nil)
		if err == nil {
			_ = r.Body.Close()
		}
		want := err == nil && r.StatusCode == http.StatusOK && r.ProtoAtLeast(1, 0) && !r.ProtoAtLeast(1, 1) && r.Status == "200 OK" && bytes.HasSuffix(line, []byte("OK\r"))
		if got != want && (!want || len(line)+1 == len(acceptance)) { // net/http also takes more spaces
			t.Errorf("%q: got %t, net/http says %t", reply, got, want)
		}
	})
}
