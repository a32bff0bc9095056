// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestChartMetadata checks what Artifact Hub shows: the image is the one that the chart installs, links and icon are in the repository.
func TestChartMetadata(t *testing.T) {
	t.Parallel()
	var chartFile struct {
		Icon        string            `json:"icon"`
		Annotations map[string]string `json:"annotations"`
	}
	must(t, yaml.Unmarshal(content(t, "daemonset/chart/Chart.yaml"), &chartFile))
	var images []struct{ Image string }
	must(t, yaml.Unmarshal([]byte(chartFile.Annotations["artifacthub.io/images"]), &images))
	if len(images) != 1 || images[0].Image != podTemplates(t, objects(t, chart(t)))["node-cache"].Spec.Containers[0].Image {
		t.Errorf("images %v, want that of the agents", images)
	}
	var links []struct{ URL string }
	must(t, yaml.Unmarshal([]byte(chartFile.Annotations["artifacthub.io/links"]), &links))
	if len(links) == 0 {
		t.Error("no links")
	}
	const home = "https://github.com/nodecache/node-cache/"
	for _, link := range links {
		path := regexp.MustCompile("^(blob|tree)/main/").ReplaceAllString(strings.TrimPrefix(link.URL, home), "")
		if _, err := os.Stat(filepath.Join(root, path)); err != nil && link.URL != home+"issues" {
			t.Errorf("link %s: %v", link.URL, err)
		}
	}
	path, is := strings.CutPrefix(chartFile.Icon, "https://raw.githubusercontent.com/nodecache/node-cache/main/")
	if !is {
		t.Fatalf("icon %s: not a file of the repository", chartFile.Icon)
	}
	icon := xml.NewDecoder(bytes.NewReader(content(t, path)))
	for first := true; ; first = false {
		token, err := icon.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if start, is := token.(xml.StartElement); first && (!is || start.Name.Local != "svg") {
			t.Errorf("the icon is no SVG: %v", token)
		}
	}
}

// TestPreRelease has the pages and the chart say that there is no release, until the changelog has one.
func TestPreRelease(t *testing.T) {
	t.Parallel()
	want := !regexp.MustCompile(`(?m)^## v\d+\.\d+\.\d+ - `).Match(content(t, "CHANGELOG.md"))
	for _, file := range []string{"README.md", "daemonset/README.md", "daemonset/chart/README.md", "daemonset/chart/Chart.yaml", "docs/install.md"} {
		if got := regexp.MustCompile(`(?i)\bpre-release\b`).Match(content(t, file)); got != want {
			t.Errorf("%s says pre-release: %t, and the changelog has no release: %t", file, got, want)
		}
	}
	if got := bytes.Contains(content(t, "daemonset/chart/Chart.yaml"), []byte(`artifacthub.io/prerelease: "true"`)); got != want {
		t.Errorf("Chart.yaml is a pre-release: %t, and the changelog has no release: %t", got, want)
	}
}
