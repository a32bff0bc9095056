// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestConvert(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	corefile := func(name, text string) string {
		path := filepath.Join(folder, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	whole := corefile("whole", ".:53 {\n  bind 127.0.0.1\n  forward . 192.0.2.1\n}\n")
	lossy := corefile("lossy", ".:53 {\n  bind 127.0.0.1\n  forward . 192.0.2.1\n  acl\n  health :8080\n}\n")
	bad := corefile("bad", ".:53 {\n")
	const head = "apiVersion: node-cache.io/v1alpha1\nkind: Config\nlisten:\n  port: 53\nforward:\n"
	for _, tt := range []struct {
		name string
		args []string
		want result
	}{
		{"nothing is lost", []string{"convert", "--strict", whole}, result{
			0, head + "# " + whole + ":3: forward . 192.0.2.1\n- zone: \".\"\n  to: [\"192.0.2.1\"]\n", "",
		}},
		{"something is lost", []string{"convert", "--strict", lossy}, result{
			1, head + "# " + lossy + ":3: forward . 192.0.2.1\n- zone: \".\"\n  to: [\"192.0.2.1\"]\nadmin:\n  # " + lossy + ":5: health :8080\n  address: \"[::]:8080\"\n",
			lossy + ":4: acl: answers do not depend on the client's address (no counterpart)\n  hint: restrict clients with a NetworkPolicy or the node's firewall\n" +
				lossy + ":5: health :8080: the page is /livez at admin.address, where metrics are too (differs)\n  hint: point the probe there\n",
		}},
		{"a block without an end", []string{"convert", bad}, result{
			1, "", "node-cache: converting: reading the Corefile: " + bad + ":1: a closing brace is missing after .:53 {\n",
		}},
		{"no file", []string{"convert", filepath.Join(folder, "none")}, result{
			1, "", "node-cache: reading the input: open " + filepath.Join(folder, "none") + ": no such file or directory\n" +
				"hint: give a Corefile, the YAML of ConfigMaps, or - for standard input\n",
		}},
	} {
		same(t, tt.name+": convert", tt.want, command(tt.args...))
	}
	if got := command("convert", "--strict", "--daemonset", whole); got.Code != 0 {
		t.Errorf("convert --daemonset: %+v", got)
	}
	if got := command("convert", lossy); got.Code != 0 {
		t.Errorf("convert of what is lossy, not strict: code %d, want 0", got.Code)
	}
}
