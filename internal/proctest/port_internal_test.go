// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// reserveEnv makes this test reserve one port in another process and print the result.
const reserveEnv = "PROCTEST_RESERVE"

func TestReservePort(t *testing.T) {
	t.Parallel()
	if port := os.Getenv(reserveEnv); port != "" {
		t.Fatal(reserve(t.Context(), netip.MustParseAddrPort(port)))
	}
	seen := map[netip.AddrPort]bool{}
	for range 200 {
		addr := FreeAddr(t)
		if seen[addr] {
			t.Fatalf("%s was given twice", addr)
		}
		seen[addr] = true
	}
	addr := FreeAddr(t)
	if err := reserve(t.Context(), addr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is reserved: %v, want that it is in use", err)
	}
	ln, err := net.Listen("tcp4", addr.String())
	assert.NoError(t, err)
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	other := exec.Command(os.Args[0], "-test.run=^TestReservePort$")
	other.Env = append(os.Environ(), reserveEnv+"="+addr.String())
	if out, _ := other.Output(); !strings.Contains(string(out), "address already in use") {
		t.Errorf("another process said %q, want that the port is in use", out)
	}
}
