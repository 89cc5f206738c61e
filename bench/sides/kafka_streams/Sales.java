import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.Stores;

/** What a Kafka Streams user writes: stores in RocksDB, exactly once, one thread, the default 10 MB cache. */
public class Sales {
    @JsonIgnoreProperties(ignoreUnknown = true)
    record Event(Sold data) {}

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Sold(long amount_cents) {}

    record Sum(long count, long sum_cents) {
        Sum plus(Sold sold) {
            return new Sum(count + 1, sum_cents + sold.amount_cents());
        }
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        String source = System.getenv("BENCH_SOURCE");
        if (System.getenv("BENCH_WORK").equals("decide")) {
            Decisions.build(builder, source, System.getenv("BENCH_SERVICE") + ".events.v1");
        } else {
            fold(builder, source);
        }

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, System.getenv("BENCH_SERVICE"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getenv("ONEFOLD_BOOTSTRAP"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getenv("ONEFOLD_DATA_DIR"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 10 * 1024 * 1024);
        settings.put("auto.offset.reset", "earliest");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setGlobalStateRestoreListener(new Restores());
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static void fold(StreamsBuilder builder, String source) {
        builder.stream(source, Consumed.with(Serdes.String(), json(Event.class)))
            .groupByKey()
            .aggregate(
                () -> new Sum(0, 0),
                (customer, event, sum) -> sum.plus(event.data()),
                Materialized.<String, Sum>as(Stores.persistentKeyValueStore("sales"))
                    .withKeySerde(Serdes.String())
                    .withValueSerde(json(Sum.class)));
    }

    /** A line for each restored partition; seconds count from the first one's beginning. */
    private static class Restores implements StateRestoreListener {
        private long began;

        @Override
        public synchronized void onRestoreStart(TopicPartition changelog, String store, long start, long end) {
            began = began == 0 ? System.nanoTime() : began;
        }

        @Override
        public void onBatchRestored(TopicPartition changelog, String store, long end, long records) {}

        @Override
        public synchronized void onRestoreEnd(TopicPartition changelog, String store, long records) {
            double seconds = (System.nanoTime() - began) / 1e9;
            String line = "{\"event\": \"restored\", \"records\": %d, \"took_s\": %.3f}%n";
            System.out.printf(Locale.ROOT, line, records, seconds);
        }
    }

    static <T> Serde<T> json(Class<T> type) {
        ObjectReader reader = JSON.readerFor(type);
        ObjectWriter writer = JSON.writerFor(type);
        return Serdes.serdeFrom((topic, value) -> written(writer, value), (topic, bytes) -> read(reader, bytes));
    }

    private static byte[] written(ObjectWriter writer, Object value) {
        try {
            return value == null ? null : writer.writeValueAsBytes(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static <T> T read(ObjectReader reader, byte[] bytes) {
        try {
            return bytes == null ? null : reader.readValue(bytes);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
