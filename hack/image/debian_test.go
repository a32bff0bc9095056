// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// checkIptables looks at the second image of a release.
func checkIptables(t *testing.T, out string) {
	t.Helper()
	if sums := string(mustRead(t, filepath.Join(out, "SHA256SUMS"))); strings.Count(sums, ".oci.tar\n") != 3 { // the chart is one too
		t.Errorf("SHA256SUMS of a release with two images:\n%s", sums)
	}
	files := readTar(t, mustRead(t, filepath.Join(out, "node-cache-v1.2.3-iptables.oci.tar")))
	top := decode[v1.IndexManifest](t, files["index.json"])
	index := decode[v1.IndexManifest](t, blobOf(t, files, top.Manifests[0].Digest))
	for i := range index.Manifests {
		of := &index.Manifests[i]
		content := contentOf(t, files, of)
		for _, name := range []string{"node-cache", "usr/sbin/xtables-nft-multi", "usr/sbin/xtables-legacy-multi", "sbin/ipset", "var/lib/dpkg/status.d/iptables"} {
			if len(content[name]) == 0 && len(content["usr/"+name]) == 0 {
				t.Errorf("%s: no %s", of.Platform.Architecture, name)
			}
		}
		for _, name := range []string{"usr/sbin/iptables", "usr/sbin/iptables-nft", "usr/sbin/ip6tables-restore"} {
			if _, ok := content[name]; !ok {
				t.Errorf("%s: no %s", of.Platform.Architecture, name)
			}
		}
		bill := mustRead(t, filepath.Join(out, "node-cache-v1.2.3-iptables-linux-"+of.Platform.Architecture+".cdx.json"))
		if !bytes.Contains(bill, []byte(`"pkg:deb/debian/iptables@`)) {
			t.Errorf("%s: the bill of materials has no Debian package", of.Platform.Architecture)
		}
	}
}
