// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestLoadTransferKeys has files that are none of keys: the load reports them, without a secret.
func TestLoadTransferKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, clients string
		file          func(path string) error
		want          string // what is wrong; empty: nothing
	}{
		{name: "one key", clients: "[192.0.2.1]", file: text(`key k { algorithm hmac-sha256; secret "c2VjcmV0"; };`)},
		{name: "no key", clients: "[192.0.2.1]", file: text("\n"), want: "no key in it"},
		{name: "a bad secret", clients: "[192.0.2.1]", file: text(`key k { algorithm hmac-sha256; secret "c2VjcmV"; };`), want: "key k.: the secret is not base64"},
		{name: "no file", clients: "[192.0.2.1]", file: func(string) error { return nil }, want: "no such file or directory"},
		{name: "no clients", clients: "[]", file: text(`key k { algorithm hmac-sha256; secret "c2VjcmV0"; };`), want: "needs cluster.transferTo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			keys, file := filepath.Join(folder, "keys"), filepath.Join(folder, "config.yaml")
			assert.NoError(t, errors.Join(tt.file(keys), os.WriteFile(file, []byte("cluster: {transferTo: "+tt.clients+", transferKeys: keys}"), 0o600)))
			got, err := config.Load(file, config.Agent)
			switch {
			case tt.want == "" && (err != nil || got.Cluster.TransferKeys != keys):
				t.Errorf("keys %q, error %v", got.Cluster.TransferKeys, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "cluster.transferKeys")):
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "c2VjcmV") {
				t.Error("the error contains the secret")
			}
		})
	}
}

// TestLoadContext has a context that the kubeconfig does not have. A kubeconfig that is not there is reported at the start.
func TestLoadContext(t *testing.T) {
	t.Parallel()
	const kubeconfig = "contexts:\n- name: east\n- name: west\n"
	for _, tt := range []struct{ name, context, kubeconfig, want string }{
		{name: "known", context: "west", kubeconfig: kubeconfig},
		{name: "none", kubeconfig: kubeconfig},
		{name: "no kubeconfig", context: "south"},
		{name: "no YAML", context: "south", kubeconfig: "{"},
		{name: "unknown", context: "south", kubeconfig: kubeconfig, want: `:1:55: cluster.context: "south": not a context of`},
		{name: "no contexts", context: "south", kubeconfig: "kind: Config", want: "it has []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			file := filepath.Join(folder, "config.yaml")
			assert.NoError(t, os.WriteFile(file, []byte("cluster: {resolver: local, kubeconfig: kube, context: \""+tt.context+"\"}"), 0o600))
			if tt.kubeconfig != "" {
				assert.NoError(t, os.WriteFile(filepath.Join(folder, "kube"), []byte(tt.kubeconfig), 0o600))
			}
			_, err := config.Load(file, config.Agent)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
