import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** A command once: its event, its key's row and its outcome, in one transaction. */
class Decisions implements Processor<String, Decisions.Command, String, Decisions.Event> {
    @JsonIgnoreProperties(ignoreUnknown = true)
    record Command(String command_id, String aggregate_id, String issued_at, String correlation_id, Sales.Sold data) {}

    record Event(
        String event_id, String type, int schema_version, String aggregate_id, long sequence, String occurred_at,
        String correlation_id, String causation_id, Sales.Sold data) {}

    record Row(long sequence, Sales.Sum state, long offset) {}

    record Outcome(long sequence, long at, long offset) {}

    private ProcessorContext<String, Event> context;
    private KeyValueStore<String, Row> sales;
    private KeyValueStore<String, Outcome> outcomes;

    static void build(StreamsBuilder builder, String source, String events) {
        builder.addStateStore(
            Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore("sales"), Serdes.String(), Sales.json(Row.class)).withCachingEnabled());
        builder.addStateStore(  // without a cache: each is written once
            Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore("outcomes"), Serdes.String(), Sales.json(Outcome.class)));
        builder.stream(source, Consumed.with(Serdes.String(), Sales.json(Command.class)))
            .process(Decisions::new, "sales", "outcomes")
            .to(events, Produced.with(Serdes.String(), Sales.json(Event.class)));
    }

    @Override
    public void init(ProcessorContext<String, Event> context) {
        this.context = context;
        sales = context.getStateStore("sales");
        outcomes = context.getStateStore("outcomes");
    }

    @Override
    public void process(Record<String, Command> record) {
        Command command = record.value();
        String known = record.key() + "\0" + command.command_id();
        if (outcomes.get(known) != null) {
            return;
        }
        Row row = sales.get(record.key());
        Sales.Sum sum = row == null ? new Sales.Sum(0, 0) : row.state();
        long sequence = row == null ? 1 : row.sequence() + 1;
        long offset = context.recordMetadata().orElseThrow().offset();
        String id = UUID.nameUUIDFromBytes((known + sequence).getBytes(StandardCharsets.UTF_8)).toString();
        context.forward(record.withValue(new Event(
            id, "bench.sold", 1, command.aggregate_id(), sequence, command.issued_at(),
            command.correlation_id(), command.command_id(), command.data())));
        sales.put(record.key(), new Row(sequence, sum.plus(command.data()), offset));
        outcomes.put(known, new Outcome(sequence, record.timestamp(), offset));
    }
}
