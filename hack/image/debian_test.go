// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestIptables needs Debian's servers, as the image does, and so runs only where it is asked for.
func TestIptables(t *testing.T) {
	t.Parallel()
	if os.Getenv("IMAGE_IPTABLES") == "" {
		t.Skip("fetches packages from Debian: set IMAGE_IPTABLES")
	}
	out := t.TempDir()
	mustRun(t, arguments(repository, out, "-iptables")...)
	if sums := string(mustRead(t, filepath.Join(out, "SHA256SUMS"))); strings.Count(sums, ".oci.tar\n") != 2 || strings.Contains(sums, "sigstore") {
		t.Errorf("SHA256SUMS of a release with two images and without a key:\n%s", sums)
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
