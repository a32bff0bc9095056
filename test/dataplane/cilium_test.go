// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// llvm is the folder of clang 19. Cilium's sources want one that is newer than Debian's default.
const llvm = "/usr/lib/llvm-19/bin"

// The modules below test with Cilium's programs.
const (
	currentCilium = "cilium"
	olderCilium   = "cilium1.15"
)

// programs are Cilium's.
type programs struct {
	agent, cni string
	sources    string // the module's folder
}

// buildPrograms builds those of a module below test, or finds them in the cache.
func buildPrograms(t *testing.T, module string) (p programs) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(llvm, "clang")); err != nil {
		t.Skip("no clang 19: apt-get install clang-19")
	}
	for name, path := range map[string]*string{"agent": &p.agent, "cni": &p.cni} {
		var err error
		*path, err = kubetest.Program(t.Context(), module+"/"+name)
		assert.NoError(t, err)
	}
	p.sources = sources(t, module, "github.com/cilium/cilium")
	return p
}

// sources returns the folder of a module that one below test needs.
func sources(t *testing.T, module, needed string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", needed)
	cmd.Dir = filepath.Join("..", module)
	out, err := cmd.Output()
	assert.NoError(t, err)
	var downloaded struct{ Dir string }
	assert.NoError(t, json.Unmarshal(out, &downloaded))
	return downloaded.Dir
}

// adapt lets an older Cilium run: on a kernel without modules, of which it reads a list, and with a clang that is newer than it and warns
// of more. It writes the agent that does; the folder is the first where that looks for programs.
func (p programs) adapt(t *testing.T, folder, agent string, m *mountSpace) {
	t.Helper()
	proctest.FindProgram(t, "bpftool", "bpftool")
	text, err := os.ReadFile(p.agent)
	assert.NoError(t, err)
	const list = "/run//modules" // as long as the other
	assert.NoError(t, os.WriteFile(agent, bytes.ReplaceAll(text, []byte("/proc/modules"), []byte(list)), 0o755))
	var loaded strings.Builder
	for _, name := range []string{
		"ip_tables", "iptable_nat", "iptable_mangle", "iptable_raw", "iptable_filter", "xt_socket",
		"ip6_tables", "ip6table_nat", "ip6table_mangle", "ip6table_raw", "ip6table_filter",
	} {
		loaded.WriteString(name + " 0 0 - Live 0x0\n")
	}
	assert.NoError(t, os.WriteFile(m.path(list), []byte(loaded.String()), 0o644))
	assert.NoError(t, os.WriteFile(filepath.Join(folder, "clang"), []byte("#!/bin/sh\nexec "+llvm+"/clang \"$@\" -Wno-error\n"), 0o755))
}

// copySources copies the sources of Cilium's BPF programs, to which its agent adds a file.
func (p programs) copySources(t *testing.T) (library string) {
	t.Helper()
	library = t.TempDir()
	from := filepath.Join(p.sources, "bpf")
	assert.NoError(t, filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		to := filepath.Join(library, "bpf", name)
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(to, 0o755))
		}
		text, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(to, text, 0o644))
	}))
	return library
}

// A cilium is Cilium on the node of a rig.
type cilium struct {
	programs

	rig     *rig
	mounts  *mountSpace
	library string
	flags   []string // of the agent
	daemon  *proctest.Process
}

// socket is where Cilium's agent answers its other programs.
const socket = "/run/cilium/cilium.sock"

// start starts Cilium's agent and waits until it is well.
func (c *cilium) start(t *testing.T) {
	t.Helper()
	args := append([]string{
		"--k8s-kubeconfig-path=" + c.rig.kubeconfig, "--ipam=kubernetes", "--identity-allocation-mode=crd", "--enable-ipv6=false",
		"--devices=" + nodeLink, "--lib-dir=" + c.library, "--state-dir=/run/cilium", "--cgroup-root=/run/cgroup",
		"--enable-hubble=false", "--enable-health-checking=false", "--enable-endpoint-health-checking=false",
	}, c.flags...)
	cmd := c.mounts.command(context.WithoutCancel(t.Context()), c.agent, args...) // explain asks it in a clean-up
	cmd.Env = append(cmd.Env, "PATH="+c.library+":"+llvm+":"+os.Getenv("PATH"), "K8S_NODE_NAME="+nodeName)
	c.daemon = proctest.Start(t, "cilium-agent", cmd)
	began, page := time.Now(), ""
	proctest.Eventually(t, limit, "cilium-agent is well", func() bool {
		if c.daemon.Ended() {
			t.Fatalf("cilium-agent has ended: %v", c.daemon.Err())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		page, _ = proctest.OverSocket(ctx, c.mounts.path(socket), http.MethodGet, "/v1/healthz") // it may be about to be there
		var status struct{ Cilium struct{ State string } }
		_ = json.Unmarshal([]byte(page), &status)
		return status.Cilium.State == "Ok"
	}, func() string { return page })
	t.Cleanup(func() {
		if t.Failed() {
			c.explain(t)
		}
	})
	t.Logf("cilium-agent is well after %s", time.Since(began).Round(10*time.Millisecond))
}

// explain shows what Cilium's agent knows, and what its programs have dropped.
func (c *cilium) explain(t *testing.T) {
	t.Helper()
	program, err := kubetest.Program(context.WithoutCancel(t.Context()), currentCilium+"/dbg") // made only when a test fails
	if err != nil {
		t.Log(err)
		return
	}
	for _, args := range [][]string{{"status"}, {"endpoint", "list"}, {"bpf", "metrics", "list"}} {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		out, _ := c.mounts.command(ctx, program, args...).CombinedOutput()
		t.Logf("cilium-dbg %s:\n%s", strings.Join(args, " "), out)
		cancel()
	}
}

// add makes a host a pod of a namespace: an endpoint of Cilium's, with the address that it returns.
func (c *cilium) add(t *testing.T, namespace string, pod *nodetest.Host) netip.Addr {
	t.Helper()
	cmd := c.mounts.command(t.Context(), c.cni)
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(pod.Name)))
	cmd.Env = append(cmd.Env, "CNI_COMMAND=ADD", "CNI_CONTAINERID="+id, "CNI_NETNS="+pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(c.cni),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE="+namespace+";K8S_POD_NAME="+pod.Name+";K8S_POD_INFRA_CONTAINER_ID="+id)
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "cilium", "type": "cilium-cni"}`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cilium-cni for %s: %v: %s", pod.Name, err, out)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	assert.NoError(t, json.Unmarshal(out, &result))
	if len(result.IPs) != 1 {
		t.Fatalf("cilium-cni for %s: %s", pod.Name, out)
	}
	addr := result.IPs[0].Address.Addr()
	// Where the agent has not heard of the pod yet, it has no labels for a second, and may send nothing.
	proctest.Eventually(t, limit, "Cilium knows pod "+pod.Name, func() bool {
		page, _ := proctest.OverSocket(t.Context(), c.mounts.path(socket), http.MethodGet, "/v1/endpoint/ipv4:"+addr.String())
		return strings.Contains(page, `"k8s:io.kubernetes.pod.namespace=`) && strings.Contains(page, `"state":"ready"`)
	})
	return addr
}

// revision is the number of the policies that act on a pod. It rises when they change.
func (c *cilium) revision(t *testing.T, p *pod) int {
	t.Helper()
	page, err := proctest.OverSocket(t.Context(), c.mounts.path(socket), http.MethodGet, "/v1/endpoint/ipv4:"+p.ip.String())
	assert.NoError(t, err)
	var endpoint struct {
		Status struct {
			Policy struct {
				Realized struct {
					Revision int `json:"policy-revision"`
				}
			}
		}
	}
	assert.NoError(t, json.Unmarshal([]byte(page), &endpoint))
	return endpoint.Status.Policy.Realized.Revision
}
