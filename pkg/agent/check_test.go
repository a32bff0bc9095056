// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// build makes an agent, which reads the files that the configuration names.
func build(cfg config.Config, role config.Role) error {
	cfg.Cache.Size = 1 << 20
	_, err := agent.New(agent.Options{Config: &cfg, Role: role, Log: io.Discard})
	return err
}

// TestCheckAgrees starts an agent with each valid configuration of package config. The check accepts those, and only those, with
// which it starts. What a machine outside a pod lacks is not for the check.
func TestCheckAgrees(t *testing.T) {
	t.Parallel()
	archive, err := txtar.ParseFile("../config/testdata/parse.txtar")
	assert.NoError(t, err)
	started, refused := 0, 0
	for _, f := range archive.Files {
		if f.Name == "is" {
			continue
		}
		role := config.Agent
		if strings.HasPrefix(f.Name, "resolver") {
			role = config.Resolver
		}
		cfg, err := config.Parse(f.Data, role)
		assert.NoError(t, err)
		_, checked := config.Check(config.Stdin, strings.NewReader(string(f.Data)+"\n#"), role, agent.CheckFiles)
		switch err := build(cfg, role); {
		case err != nil && strings.Contains(err.Error(), "does not run in a pod"):
		case (err == nil) != (checked == nil):
			t.Errorf("%s: the agent: %v; the check: %v", f.Name, err, checked)
		case err == nil:
			started++
		default:
			refused++
		}
	}
	if started < 60 || refused < 4 {
		t.Errorf("%d started, %d refused, want most to start and those with missing files to be refused", started, refused)
	}
}

// TestCheckOwnAddresses makes configurations of few addresses, so that many are the agent's own. The check refuses those that the
// agent refuses for its own addresses, here and on another machine; only here the addresses of this machine count.
func TestCheckOwnAddresses(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(37, 37)) //nolint:gosec // the same cases in each run
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	refusals := 0
	for range 300 {
		addresses := pick("127.0.0.1", "0.0.0.0", "'::'", "'::1', 127.0.0.2", "169.254.20.10")
		port := pick("53", "1053")
		servers := func() string {
			var list []string
			for range 1 + random.IntN(2) {
				list = append(list, fmt.Sprintf("'%s:%s'", pick("127.0.0.1", "127.0.0.2", "[::1]", "169.254.20.10", "192.0.2.1"), pick("53", "1053")))
			}
			return "[" + strings.Join(list, ", ") + "]"
		}
		text := "forward: [{zone: ., to: " + servers() + "}]\ncluster: {resolver: central, central: {addresses: " + servers() + "}}\n"
		own := "listen: {addresses: [" + addresses + "], port: " + port + "}\n"
		_, checked := config.Check(config.Stdin, strings.NewReader(own+text), config.Agent, nil)
		if isTwice(checked) {
			continue
		}
		cfg, err := config.Parse([]byte("listen: {addresses: [198.51.100.1], port: 9}\n"+text), config.Agent)
		assert.NoError(t, err)
		listening, err := config.Parse([]byte(own), config.Agent)
		assert.NoError(t, err)
		cfg.Listen = listening.Listen
		err = build(cfg, config.Agent)
		if errors.Is(err, upstream.ErrNoUpstream) {
			refusals++
		}
		if (err == nil) != (checked == nil) {
			t.Fatalf("%s%sthe agent: %v\nthe check: %v", own, text, err, checked)
		}
	}
	if refusals < 30 || refusals > 270 {
		t.Errorf("%d refusals of 300, want a mix", refusals)
	}
}

// isTwice reports whether a configuration has a server twice, which has nothing to do with own addresses.
func isTwice(err error) bool { return err != nil && strings.Contains(err.Error(), "already") }

// TestCheckFiles checks what is said about files, with lines.
func TestCheckFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name, text string) string { return proctest.WriteFile(t, filepath.Join(folder, name), text) }
	empty, own := write("empty", ""), write("own", "nameserver 127.0.0.1\nnameserver x\nnameserver 192.0.2.1\n")
	blocked, partly := write("blocked", "ads.example\n"), write("partly", "ads.example\n||a.example^\nb..example\n")
	write("kubeconfig", "no kubeconfig")
	write("contexts", "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://192.0.2.1'}}]\ncontexts: [{name: a, context: {cluster: a}}]\n")
	assert.NoError(t, os.Mkdir(filepath.Join(folder, "objects"), 0o700))
	value := regexp.MustCompile(`"[^"]*"(\.\.\.)?: `) // how much of a long path is shown is not of interest here
	const missing = ": no such file or directory"
	for _, tt := range []struct{ name, text, want string }{
		{"a resolv.conf that is missing", "forward: [{zone: ., to: [FOLDER/none]}]", "1:26: forward[0].to[0]: VALUE" + missing},
		{"a folder for a resolv.conf", "forward: [{zone: ., to: [FOLDER]}]", "1:26: forward[0].to[0]: VALUE: is a directory"},
		{"a resolv.conf without servers", "forward: [{zone: ., to: [" + empty + "]}]", "1:26: warning: forward[0].to[0]: VALUE: names no server that can be asked"},
		{
			"a resolv.conf with odd servers", "listen: {port: 53}\nforward: [{zone: ., to: [" + own + "]}]",
			"2:26: warning: forward[0].to[0]: VALUE: nameserver 127.0.0.1:53 is not asked: own address\n" +
				"2:26: warning: forward[0].to[0]: VALUE: nameserver x is not asked: not an address",
		},
		{"a kubeconfig that is missing", "cluster: {resolver: local, kubeconfig: FOLDER/none}", "1:40: cluster.kubeconfig: VALUE: reading kubeconfig FOLDER/none" + missing},
		{"a kubeconfig that is not used", "cluster: {resolver: none, kubeconfig: FOLDER/none}", ""},
		{"a central resolver without a watch", "cluster: {resolver: central, central: {addresses: [192.0.2.1]}, kubeconfig: FOLDER/none}", ""},
		{"no kubeconfig", "cluster: {resolver: local, kubeconfig: FOLDER/kubeconfig}", "1:40: cluster.kubeconfig: VALUE: reading kubeconfig FOLDER/kubeconfig: error loading"},
		{
			"another context", "cluster: {resolver: local, kubeconfig: FOLDER/contexts, context: b}",
			"1:" + strconv.Itoa(60+len(folder)) + ": cluster.context: VALUE: not a context of FOLDER/contexts",
		},
		{"the service account", "cluster: {resolver: local}", ""},
		{"no folder of manifests", "cluster: {resolver: local, manifests: FOLDER/none}", "1:39: cluster.manifests: VALUE" + missing},
		{"a folder of manifests", "cluster: {resolver: local, manifests: FOLDER/objects}", ""},
		{"no hosts file", "hosts: {files: [FOLDER/none]}", "1:17: warning: hosts.files[0]: VALUE" + missing},
		{"no block list", "block: {files: [FOLDER/none]}", "1:17: warning: block.files[0]: VALUE" + missing},
		{"a block list", "block: {files: [" + blocked + "]}", ""},
		{"a block list with other lines", "block: {files: [" + partly + "]}", "1:17: warning: block.files[0]: VALUE: 2 lines are not used, the first is line 2"},
		{
			"files of etcd", "etcd: {endpoints: ['https://192.0.2.1'], zones: [a], user: u, passwordFile: FOLDER/none,\n tls: {cert: FOLDER/none,\n key: FOLDER/none}}",
			"1:77: warning: etcd.passwordFile: VALUE" + missing + "\n2:14: warning: etcd.tls.cert: VALUE" + missing + "\n3:7: warning: etcd.tls.key: VALUE" + missing,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := strings.ReplaceAll(tt.text, "FOLDER", folder)
			checked, err := config.Check(config.Stdin, strings.NewReader(text), config.Agent, agent.CheckFiles)
			var list []string
			for _, w := range checked.Warnings {
				list = append(list, fmt.Sprintf("%d:%d: warning: %s", w.Line, w.Column, w))
			}
			if bad, ok := errors.AsType[*config.Error](err); ok {
				for _, p := range bad.Problems {
					list = append(list, fmt.Sprintf("%d:%d: %s", p.Line, p.Column, p))
					if strings.HasSuffix(p.What, missing) && !strings.Contains(p.Hint, "--no-files") {
						t.Errorf("hint %q, want one that names --no-files", p.Hint)
					}
				}
			}
			got := strings.ReplaceAll(value.ReplaceAllString(strings.Join(list, "\n"), "VALUE: "), folder, "FOLDER")
			if want := tt.want; got != want && (!strings.HasSuffix(want, "error loading") || !strings.HasPrefix(got, want)) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if _, err := config.Check(config.Stdin, strings.NewReader(text), config.Agent, nil); err != nil {
				t.Errorf("without files: %v", err)
			}
		})
	}
}
