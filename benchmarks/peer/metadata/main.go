// Reads a device metadata file (KEP-5304) from stdin as its readers do: KubeVirt mirrors this package. Prints one JSON
// object: the file as each version that the package knows, and what its validation says.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

func main() {
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	answer := map[string]any{}
	for name, dest := range map[string]runtime.Object{
		"v1alpha1": &v1alpha1.DeviceMetadata{},
		"v1beta1":  &v1beta1.DeviceMetadata{},
	} {
		var invalid error
		decoder := json.NewDecoder(bytes.NewReader(content))
		option := devicemetadata.DecodeMetadataWithValidationResult(&invalid)
		if err := devicemetadata.DecodeMetadataFromStream(decoder, dest, option); err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		if invalid != nil {
			log.Fatalf("%s is invalid: %v", name, invalid)
		}
		answer[name] = dest
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		log.Fatal(err)
	}
}
