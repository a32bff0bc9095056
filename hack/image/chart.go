// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"regexp"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of a chart in a registry, as Helm has them.
const (
	chartConfigType types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartType       types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// addChart adds the packed chart, and the archive and the provenance of the chart as a registry has it. It returns the reference by
// digest. The repository is charts/node-cache beside the image's: Helm wants the chart's name at the end, and the image has that.
func (o *options) addChart(files tree) (string, error) {
	packed, metadata, err := o.chart()
	if err != nil {
		return "", err
	}
	artifact, err := o.chartArtifact(packed, metadata)
	if err != nil {
		return "", err
	}
	digest, err := artifact.Digest()
	if err != nil {
		return "", fmt.Errorf("computing the digest: %w", err)
	}
	name, number := path.Join(path.Dir(o.name), "charts/node-cache"), o.version[1:]
	provenance, statements, err := o.attest(artifact, name, nil)
	if err != nil {
		return "", err
	}
	archive, err := makeArchive(o, artifact, map[string]string{refName: number}, statements)
	if err != nil {
		return "", err
	}
	files["node-cache-"+number+".tgz"] = node{data: packed}
	files["node-cache-chart-"+o.version+".oci.tar"] = node{data: archive}
	files["node-cache-chart-"+o.version+".intoto.json"] = node{data: provenance}
	return fmt.Sprintf("%s:%s@%s", name, number, digest), nil
}

// chartImage is a chart as a registry has it: its Chart.yaml as JSON in place of an image's configuration, and the packed chart as its
// only layer.
type chartImage struct {
	config, manifest []byte
	layer            v1.Layer
}

func (c *chartImage) RawConfigFile() ([]byte, error) { return c.config, nil }

func (c *chartImage) RawManifest() ([]byte, error) { return c.manifest, nil }

func (c *chartImage) MediaType() (types.MediaType, error)                    { return types.OCIManifestSchema1, nil }
func (c *chartImage) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return c.layer, nil }

// chartArtifact makes of the packed chart and its Chart.yaml what `helm push` would, which writes the time into it.
func (o *options) chartArtifact(packed, metadata []byte) (v1.Image, error) {
	config, err := yaml.YAMLToJSON(metadata)
	if err != nil {
		return nil, fmt.Errorf("reading Chart.yaml: %w", err)
	}
	var about struct{ Name, Version, Description string }
	if err := yaml.Unmarshal(metadata, &about); err != nil {
		return nil, fmt.Errorf("reading Chart.yaml: %w", err)
	}
	notes := labels(o)
	notes["org.opencontainers.image.title"], notes["org.opencontainers.image.version"] = about.Name, about.Version
	notes["org.opencontainers.image.description"] = about.Description
	layer := static.NewLayer(packed, chartType)
	digest, err := layer.Digest()
	if err != nil {
		return nil, fmt.Errorf("computing the digest: %w", err)
	}
	sum := sha256.Sum256(config)
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: notes,
		Config: v1.Descriptor{MediaType: chartConfigType, Size: int64(len(config)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}},
		Layers: []v1.Descriptor{{MediaType: chartType, Size: int64(len(packed)), Digest: digest}},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the chart's manifest: %w", err)
	}
	return partial.CompressedToImage(&chartImage{config: config, manifest: manifest, layer: layer})
}

// chart packs the chart with this version's number and image, and returns its Chart.yaml too. `helm package` would write the time into it.
func (o *options) chart() (packed, metadata []byte, err error) {
	chart, err := readTree(filepath.Join(o.root, "daemonset", "chart"), "node-cache")
	if err != nil {
		return nil, nil, err
	}
	const file = "node-cache/Chart.yaml"
	version := regexp.MustCompile(`(?m)^version: (.*)$`).FindSubmatch(chart[file].data)
	if version == nil {
		return nil, nil, fmt.Errorf("packing the chart: %s has no version", file)
	}
	number := regexp.MustCompile(`(?m)(^version: |\bv)` + regexp.QuoteMeta(string(version[1])) + `\b`)
	for name, n := range chart {
		n.data = number.ReplaceAll(n.data, []byte("${1}"+o.version[1:]))
		n.data = bytes.ReplaceAll(n.data, []byte(imageName), []byte(o.name))
		chart[name] = n
	}
	packed, err = o.pack(chart)
	return packed, chart[file].data, err
}
