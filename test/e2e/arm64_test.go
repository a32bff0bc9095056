// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestArm64 builds the program for arm64 and runs it under user-mode emulation: it answers over both transports from its zone, an
// upstream and its cache, and answers probes without Go's runtime, by assembly of this architecture. Its system calls are those of
// this machine's kernel.
func TestArm64(t *testing.T) {
	t.Parallel()
	emulator := proctest.FindProgram(t, "qemu-aarch64", "qemu-user")
	program := filepath.Join(t.TempDir(), "node-cache")
	build := exec.Command("go", "build", "-ldflags", "-w -E main.entry", "-o", program, "../../cmd/node-cache")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	emulated := func(args ...string) *exec.Cmd { return exec.Command(emulator, append([]string{program}, args...)...) }

	services := t.TempDir()
	writeFile(t, filepath.Join(services, "web.yaml"), `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop},
  spec: {clusterIP: 10.96.0.7, ports: [{name: http, port: 80, protocol: TCP}]}}`)
	s := settings{
		address: "127.0.0.1", port: freePort(t), admin: freePort(t), socket: proctest.SocketPath(t), to: []string{startScripted(t, answerA)},
		more: fmt.Sprintf("cluster: {resolver: local, manifests: %s}\n", services),
	}
	config := writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), s.yaml())
	a := launch(t, s, emulated("agent", "--config", config), config)
	for _, transport := range []string{"udp", "tcp"} {
		for name, want := range map[string]string{"web.shop.svc.cluster.local.": "10.96.0.7", "host.example.": "192.0.2.7"} {
			client := dns.Client{Net: transport, Timeout: answerLimit}
			r, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), a.addr)
			if err != nil || len(r.Answer) != 1 || !strings.HasSuffix(r.Answer[0].String(), "\tA\t"+want) {
				t.Errorf("%s over %s: %v\n%s", name, transport, err, r)
			}
		}
	}
	for want, args := range map[string][]string{"ready\n": {"ready"}, "live\n": {"ready", "--live"}} {
		probe := emulated(args...)
		probe.Env = append(os.Environ(), "GODEBUG=inittrace=1", "NODE_CACHE_ADMIN=unix:"+s.socket)
		out, err := probe.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%v: %v, %.200q; want %q and nothing of the runtime's start", args, err, out, want)
		}
	}
	explained, err := emulated("query", "--explain", "--server", a.addr, "web.shop.svc.cluster.local").CombinedOutput()
	assert.NoError(t, err)
	if !strings.Contains(string(explained), "10.96.0.7") {
		t.Errorf("query --explain:\n%s", explained)
	}
}
