// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"

	"github.com/nodecache/node-cache/internal/nodetest"
)

//go:embed files
var files embed.FS

// agentIPv4 is where the pods find the agent.
func agentIPv4() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 20, 10}) }

// agentIPv6 is where the pods find the agent.
func agentIPv6() netip.Addr { return netip.MustParseAddr("fd00:169:254::10") }

// resolvConf is what a kubelet writes for a pod of the namespace default.
func resolvConf() []byte {
	return fmt.Appendf(nil, "nameserver %s\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n", agentIPv4())
}

// writeFiles fills the folder: configuration, objects of the cluster, and the commands of the shell in bin.
func (p *play) writeFiles(o options) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the own program: %w", err)
	}
	for _, dir := range []string{"bin", "net"} {
		if err := os.Mkdir(filepath.Join(p.dir, dir), 0o755); err != nil {
			return fmt.Errorf("making a folder: %w", err)
		}
	}
	if err := os.CopyFS(filepath.Join(p.dir, "cluster"), os.DirFS(o.manifests)); err != nil {
		return fmt.Errorf("copying the objects of the cluster: %w", err)
	}
	for name, mode := range map[string]os.FileMode{"agent.yaml": 0o644, "central.yaml": 0o644, "bin/agent": 0o755, "bin/doctor": 0o755, "bin/host": 0o755, "bin/who-answers": 0o755} {
		text, err := p.expandTemplate(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.dir, name), text, mode); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	links := map[string]string{"bin/play": self, "bin/node-cache": o.nodeCache}
	for name, host := range p.hosts() {
		links["net/"+name] = host.Path()
		links["bin/"+name] = "host"
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(p.dir, name)); err != nil {
			return fmt.Errorf("linking %s: %w", name, err)
		}
	}
	return nil
}

// hosts are the hosts by the names that a person gives them.
func (p *play) hosts() map[string]*nodetest.Host {
	return map[string]*nodetest.Host{"pod1": p.network.Pods[1], "pod2": p.network.Pods[2], "node": p.network.Node, "upstream": p.network.Upstream}
}

// expandTemplate is one of the embedded files with what it leaves open.
func (p *play) expandTemplate(name string) ([]byte, error) {
	t, err := template.ParseFS(files, "files/"+name)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	var text bytes.Buffer
	err = t.Execute(&text, map[string]any{
		"AgentName": agentName, "AgentIPv4": agentIPv4(), "AgentIPv6": agentIPv6(),
		"CentralName": centralName, "CentralIPv4": nodetest.ServiceIPv4(), "CentralIPv6": nodetest.ServiceIPv6(),
		"Dir": p.dir, "PID": p.agentPID, "Pod1": p.network.Pods[1], "Pod2": p.network.Pods[2], "Node": p.network.Node, "Upstream": p.network.Upstream,
		"NoDig": missing("dig"),
	})
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", name, err)
	}
	return text.Bytes(), nil
}

// missing reports whether a program is not installed.
func missing(program string) bool {
	_, err := exec.LookPath(program)
	return err != nil
}

// welcome says where one is, and what to try.
func (p *play) welcome(stdout io.Writer) error {
	text, err := p.expandTemplate("welcome.txt")
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}

// environment is that of the shell and the commands.
func (p *play) environment(host string) []string {
	return append(os.Environ(),
		"PLAY="+p.dir, "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH")+":/usr/sbin:/sbin",
		"PLAY_HOST="+host, "NODE_CACHE_ADMIN=unix:"+filepath.Join(p.dir, "admin.sock"), "HISTFILE="+filepath.Join(p.dir, "history"), "XTABLES_LOCKFILE="+p.network.Node.XtablesLock())
}
