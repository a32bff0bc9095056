// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

func TestDefaultOfRoles(t *testing.T) {
	t.Parallel()
	want := config.Default(config.Agent)
	want.Listen.Addresses = []netip.Addr{netip.MustParseAddr("::")}
	want.Cluster.Resolver, want.Cluster.Endpoints = config.ResolverLocal, config.EndpointsAll
	want.Admin.Address = netip.MustParseAddrPort("[::]:9253")
	assert.Same(t, "the resolver's defaults", want, config.Default(config.Resolver), plain())
}

func TestLoadResolvesPaths(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, tt := range []struct {
		name, text           string
		kubeconfig, manifest string
		snapshot             string
	}{
		{name: "manifests", text: "cluster: {manifests: ../objects}", manifest: filepath.Join(filepath.Dir(folder), "objects")},
		{name: "kubeconfig", text: "cluster: {kubeconfig: admin.conf}", kubeconfig: filepath.Join(folder, "admin.conf")},
		{name: "snapshot", text: "snapshot: {folder: ../kept}", snapshot: filepath.Join(filepath.Dir(folder), "kept")},
		{name: "absolute", text: "cluster: {manifests: /objects}", manifest: "/objects"},
		{name: "the folder itself", text: "cluster: {manifests: .}", manifest: folder},
		{name: "none", text: "cluster: {}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(folder, tt.name+".yaml")
			assert.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
			want := with(func(c *config.Config) {
				c.Cluster.Kubeconfig, c.Cluster.Manifests, c.Snapshot.Folder = tt.kubeconfig, tt.manifest, tt.snapshot
			})
			got, err := config.Load(file, config.Agent)
			assert.NoError(t, err)
			assert.Same(t, "Load", want, got, plain())
		})
	}
}

// TestLoadResolvesRelativePathOfFile cannot run beside other tests: it changes the working folder.
func TestLoadResolvesRelativePathOfFile(t *testing.T) {
	t.Chdir(t.TempDir())
	assert.NoError(t, os.WriteFile("config.yaml", []byte("cluster: {manifests: objects}"), 0o600))
	here, err := os.Getwd()
	assert.NoError(t, err)
	got, err := config.Load("config.yaml", config.Agent)
	assert.NoError(t, err)
	if want := filepath.Join(here, "objects"); got.Cluster.Manifests != want {
		t.Errorf("manifests in %q, want %q", got.Cluster.Manifests, want)
	}
}
