// Command selectors judges devices by CEL selectors with upstream's own implementation, to compare ours with.
//
// Its argument is a file with the devices: a JSON object by name. It reads one expression per line from standard input,
// a JSON string, and writes one answer per line to standard output: "C" when the expression does not compile, else one
// letter for each device in the order of the names: T for a match, F for none, E for an error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type device struct {
	Driver                   string                                                    `json:"driver"`
	AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var devices map[string]device
	if err := json.Unmarshal(content, &devices); err != nil {
		return err
	}
	names := make([]string, 0, len(devices))
	for name := range devices {
		names = append(names, name)
	}
	slices.Sort(names)
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var expression string
		if err := json.Unmarshal(lines.Bytes(), &expression); err != nil {
			return err
		}
		compiled := compiler.CompileCELExpression(expression, cel.Options{})
		if compiled.Error != nil {
			fmt.Println("C")
			continue
		}
		answers := ""
		for _, name := range names {
			answers += judge(compiled, devices[name])
		}
		fmt.Println(answers)
	}
	return lines.Err()
}

func judge(compiled cel.CompilationResult, device device) string {
	matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   device.Driver,
		AllowMultipleAllocations: device.AllowMultipleAllocations,
		Attributes:               device.Attributes,
		Capacity:                 device.Capacity,
	})
	switch {
	case err != nil:
		return "E"
	case matches:
		return "T"
	default:
		return "F"
	}
}
