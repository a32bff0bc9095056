// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestCheckForward reports problems of upstreams, and of the files that they name, before any upstream is queried.
func TestCheckForward(t *testing.T) {
	t.Parallel()
	path := file(t, "forward:\n"+
		"- {zone: ., to: ['tls://dns.example'], policy: fatest, tls: {ca: nowhere.pem}}\n"+
		"- {zone: a, to: ['https://dns.example']}\n- {zone: b, to: ['tls://192.0.2.1'], tls: {ca: nowhere.pem}}\n")
	want := strings.NewReplacer("FILE", path).Replace(
		`node-cache: FILE:2:18: forward[0].to[0]: "tls://dns.example": not a URL of an IP address
hint: write its address with the name behind it, like tls://192.0.2.1#dns.example
node-cache: FILE:2:48: forward[0].policy: "fatest": not fastest, sequential or random
hint: did you mean "fastest"?
node-cache: FILE:2:66: forward[0].tls.ca: CA: no such file or directory
hint: name a file that this user can read, or give --no-files if this machine is not the node
node-cache: FILE:3:18: forward[1].to[0]: "https://dns.example": needs forward[1].bootstrap
hint: list the addresses of the host there: no server could be asked for them
node-cache: FILE:4:48: forward[2].tls.ca: CA: no such file or directory
hint: name a file that this user can read, or give --no-files if this machine is not the node
`)
	got := command("check", path)
	var lines []string
	for line := range strings.Lines(got.Stderr) { // how much of a long path is shown is not of interest here
		if head, _, found := strings.Cut(line, `.tls.ca: "`); found {
			line = head + ".tls.ca: CA: no such file or directory\n"
		}
		lines = append(lines, line)
	}
	if diff := cmp.Diff(want, strings.Join(lines, "")); diff != "" || got.Code != cli.ExitFailed || got.Stdout != "" {
		t.Errorf("code %d, standard output %q, standard error (-want +got):\n%s", got.Code, got.Stdout, diff)
	}
}

// TestCheckForwardPrint prints a route with every key.
func TestCheckForwardPrint(t *testing.T) {
	t.Parallel()
	path := file(t, "forward: [{zone: ., to: ['https://dns.example/q', 'tls://192.0.2.1#Dns.Example', 192.0.2.2], bootstrap: [192.0.2.1], policy: random, "+
		"connections: 4, rate: 100, case: on, https: {method: get}}]\n")
	printed := command("check", "--print", path)
	got, err := config.Parse([]byte(printed.Stdout), config.Agent)
	if printed.Code != cli.ExitOK || err != nil {
		t.Fatalf("%+v, error %v", printed, err)
	}
	want, err := config.Load(path, config.Agent)
	must(t, err)
	same(t, "routes", want.Forward, got.Forward, cmpopts.EquateComparable(netip.Addr{}, config.Target{}))
}
