// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// writeKubeconfig writes the way to an API server beside an agent's configuration.
func writeKubeconfig(t *testing.T, config, server string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: test}}]
`, server)
	if err := os.WriteFile(filepath.Join(filepath.Dir(config), "kubeconfig"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
